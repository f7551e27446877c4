# SPDX-License-Identifier: GPL-2.0-or-later
"""The parts of decide(): what is placed where, refused, skipped or warned of. All pure."""
