# SPDX-License-Identifier: GPL-2.0-or-later
"""The parts of the command line."""
