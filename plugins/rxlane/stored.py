# SPDX-License-Identifier: GPL-2.0-or-later
"""Where what rxlane knows is written, and the marks of it: recorded snapshots and the journal, by
rxlane.codec.
"""

from __future__ import annotations

from typing import Any

STATE = "/var/lib/rxlane"  # the journal's directory
FORMAT = 1  # of recorded snapshots and of the journal

# A field that came after the first recordings: written only when it says something, so that older
# recordings and journals stay what they are.
LATER: dict[str, Any] = {"later": True}
