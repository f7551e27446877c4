# SPDX-License-Identifier: GPL-2.0-or-later
"""What keeps a layout standing while the host lives, and waits for a confirmation."""
