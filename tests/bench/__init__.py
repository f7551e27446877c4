# SPDX-License-Identifier: GPL-2.0-or-later
"""The figures of the seed documents, measured in the lab as ratios within one boot."""
