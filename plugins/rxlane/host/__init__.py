# SPDX-License-Identifier: GPL-2.0-or-later
"""What is read of a host and of who uses it, one subject a file; observe() puts it together."""
