# SPDX-License-Identifier: GPL-2.0-or-later

from __future__ import annotations

import tuned.logs
from tuned.profiles.functions import base

from rxlane.errors import RxlaneError
from rxlane.tuned import tuned_compat
from rxlane.tuned.tuned_facet import VARIABLES
from rxlane.tuned.variables import FUNCTION

log = tuned.logs.get()


class RxlaneVariable(base.Function):  # type: ignore[misc]
    """Returns what /etc/tuned/PROFILE-variables.conf has for a variable, else the default.

    Arguments: PROFILE, the variable, the default. What cannot be read leaves the call as it is,
    which no option takes for a value.
    """

    def __init__(self) -> None:
        name = tuned_compat.function_arguments(base.Function.__init__, FUNCTION)
        super().__init__(*name, 3, 3)

    def execute(self, args: list[str]) -> str | None:
        if not super().execute(args):
            return None
        try:
            return VARIABLES.value(*args)
        except RxlaneError as error:
            if VARIABLES.is_news(str(error)):
                log.error(f"rxlane: {error}")
            return None
