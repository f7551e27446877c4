# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab: real kernels, a real Debian 13, real QEMU guests. Own code only joins the tools."""
