# SPDX-License-Identifier: GPL-2.0-or-later
"""The parts of apply(): order, requests, reading back, and the way back."""
