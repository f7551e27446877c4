# SPDX-License-Identifier: GPL-2.0-or-later
"""How the stress scripts in guest/ are run: under flood, with nothing else managing links.

RXLANE_SEED=N repeats the choices of a run that printed N; which of them meet is up to the guest.
"""

import json
import os
import random
import shlex
from typing import Any

from flooding import flooded

from conftest import MANAGERS, SCRIPTS, STRESS
from lab.vm import Guest

# Packets a second of the flood: what an emulated debug kernel takes beside the rest.
RATE = 1_000
OUTCOME, ERRORS = "/root/stress.json", "/root/stress.err"

Outcome = dict[str, Any]


def prepared(vm: Guest) -> Guest:
    """The guest, with what switches threads off while links are down or flooded."""
    vm.run(["mkdir", "/root/guest"])
    vm.put(SCRIPTS / "napi_contract.py", "/root/guest/napi_contract.py")
    # As a program and, for the other one, as a module.
    for path in ("guest/threaded_down.py", "threaded_down.py"):
        vm.put(SCRIPTS / "threaded_down.py", f"/root/{path}")
    for script in ("threaded_flood.py", "threaded_stress.py"):
        vm.put(SCRIPTS / script, f"/root/{script}")
    return vm


def stress(
    vm: Guest, script: str, wanted: int, disturbances: int, seconds: int,
    kind: str = "virtio", beside: tuple[str, ...] = (), rate: int = RATE,
) -> Outcome:  # fmt: skip
    """What the script printed of so much of what it counts, its seed included.

    beside: what it needs from guest/ in addition to STRESS. rate: of the flood, packets a second.
    """
    for name in (*STRESS, *beside, script):
        vm.put(SCRIPTS / name, f"/root/{name}")
    vm.run(["systemctl", "stop", *MANAGERS])
    seed = int(os.environ.get("RXLANE_SEED") or random.randrange(1, 1 << 30))
    words = [vm.nic_of(kind), *(str(number) for number in (wanted, disturbances, seconds, seed))]
    # By files: a process that is stuck in the kernel for good would hold a pipe open.
    command = f"python3 /root/{script} {shlex.join(words)} > {OUTCOME} 2> {ERRORS}"
    with flooded(vm, kind, rate, milliseconds=(seconds + 600) * 1000):
        vm.run(["sh", "-c", f"{command} || {{ cat {ERRORS} >&2; exit 1; }}"], timeout=seconds + 600)
    outcome: Outcome = json.loads(vm.read(OUTCOME))
    print(json.dumps({"seed": seed, **outcome}, indent=1))
    if outcome["stuck"] or outcome["faults"]:
        print(vm.read(ERRORS).decode())
        vm.keep()
    return outcome
