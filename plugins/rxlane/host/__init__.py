# SPDX-License-Identifier: GPL-2.0-or-later
"""What observe() reads of a host, one subject a file."""
