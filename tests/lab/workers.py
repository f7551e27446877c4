# SPDX-License-Identifier: GPL-2.0-or-later
"""Guest tests on several workers of xdist: which stay together, and what workers hand over.

Its marks of groups (`--dist loadgroup`) were tried: xdist 3.8 writes them into a name that pytest
9.2 no longer reads.
"""

import re
from collections.abc import Collection
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from lab.vm import ANEW

OUTPUT = "anew"


def scope(nodeid: str, kernels: Collection[str]) -> str:
    """The kernel of the guest that a test shares with those of other files, or else its file."""
    found = re.search(r"\[([^\]-]+-[^\]-]+)", nodeid)
    return found[1] if found and found[1] in kernels else nodeid.partition("::")[0]


class ByGuest(LoadScopeScheduling):  # type: ignore[misc]
    """One worker runs all tests of a guest, which is booted once.

    Groups come as their first tests were collected: those of most tests are not what takes longest.
    """

    def __init__(self, config: pytest.Config, log: Any, kernels: Collection[str]) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self.kernels = kernels

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid, self.kernels)


def hand_over(config: pytest.Config) -> None:
    """Called in a worker, at its end: what is to be told of guests goes to who started it."""
    if hasattr(config, "workeroutput"):
        config.workeroutput[OUTPUT] = list(ANEW)


def take(node: Any) -> None:
    """Called where the workers were started, with each that ended; one that died left nothing."""
    ANEW.extend(getattr(node, "workeroutput", {}).get(OUTPUT, []))
