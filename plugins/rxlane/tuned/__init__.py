# SPDX-License-Identifier: GPL-2.0-or-later
"""What TuneD's plugins need of the library, and all that is known of TuneD."""
