# SPDX-License-Identifier: GPL-2.0-or-later
"""The scheduler's fair server, which real-time pollers bring about, is not counted as a task.

Where it is, as on stock 6.12, CPU hotplug can wait long for a CPU, or find it "not properly
vacated". That is rare; what is counted shows each time.
"""

import json

import pytest

from conftest import SCRIPTS
from lab.kernel import build
from lab.machine import GuestSpec
from lab.vm import Guest

# The ordinary process has a twentieth of the time, of which a look takes a millisecond or less.
SAMPLES, SECONDS = 50, 60
# The one that is served, and the one that never sleeps.
TASKS = 2
REMOTE = "/root/fair_server.py"


@pytest.mark.parametrize(
    ("base", "patched"), [("6.12", True), pytest.param("7.2", False, marks=pytest.mark.long)]
)
def test_only_tasks_are_counted(base: str, patched: bool) -> None:
    with Guest(build(base, patched=patched), GuestSpec(cpus=2)) as vm:
        vm.put(SCRIPTS / "fair_server.py", REMOTE)
        looks = json.loads(vm.run(["python3", REMOTE, str(SAMPLES), str(SECONDS)]).stdout)
        assert sum(looks.values()) == SAMPLES, looks
        # Others may run meanwhile, on the other CPU; three is where the server is one of them.
        assert min(map(int, looks)) == TASKS, looks
        vm.check_splats()
