# SPDX-License-Identifier: GPL-2.0-or-later
"""Layouts by the properties of .link files, and the service that keeps them."""
