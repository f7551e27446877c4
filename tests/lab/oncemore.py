# SPDX-License-Identifier: GPL-2.0-or-later
"""A test whose guest was lost to the emulation of its CPUs: run once more, with new guests.

pytest-rerunfailures was looked at for it: it keeps the fixtures of session and module that did not
fail themselves, and here one of these is the guest that is gone.
"""

import pytest
from _pytest.runner import CallInfo, runtestprotocol

from lab.progress import say
from lab.vm import ANEW, GUESTS

# So that no fault of ours hides behind it, one test a run, or a worker of it, is all.
WAS_RUN = "was run once more"


def lost_to_emulation() -> str:
    """The first guest that was, and how; empty where none was, or a test was run once more."""
    if any(WAS_RUN in why for why in ANEW):
        return ""
    found = ((guest.kernel.name, guest.lost_to_emulation()) for guest in GUESTS)
    return next((f"{name}: {why}" for name, why in found if why), "")


def end_fixtures(item: pytest.Item) -> None:
    """Ends those of every scope. What they say of the guest that is gone is known already."""
    CallInfo.from_call(
        lambda: item.session._setupstate.teardown_exact(None),
        when="teardown",
        reraise=(KeyboardInterrupt, pytest.exit.Exception),
    )


def protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """What pytest does with a test, twice where lost_to_emulation(); only the last run counts."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if any(report.failed for report in reports) and (why := lost_to_emulation()):
        again = f"{why}; {item.nodeid} {WAS_RUN}"
        say(again)
        ANEW.append(again)
        end_fixtures(item)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
