# SPDX-License-Identifier: GPL-2.0-or-later
"""Lanes as tables, pictures and JSON. All pure."""
