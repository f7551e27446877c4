# SPDX-License-Identifier: GPL-2.0-or-later
"""The families of netlink, and the ioctl, that are asked and told."""
