# SPDX-License-Identifier: GPL-2.0-or-later
"""Lay out receive lanes: RX queue, NAPI instance, IRQ, polling thread, CPU.

Import the submodules you need; this package imports none, so that the command starts quickly.
"""

__version__ = "0.1.0"
