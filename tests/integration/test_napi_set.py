# SPDX-License-Identifier: GPL-2.0-or-later
"""NETDEV_CMD_NAPI_SET of our 6.12 answers as stock 7.2 does, error for error."""

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import KERNELS, OURS
from lab.kernel import KernelImage, build
from lab.machine import GuestSpec
from lab.vm import Guest

SCRIPT = Path(__file__).parent / "guest" / "napi_contract.py"
EPERM, ENOENT, EINVAL, ERANGE = 1, 2, 22, 34

Answers = dict[str, Any]


def ask(kernel: KernelImage) -> Answers:
    with Guest(kernel, GuestSpec(cpus=2)) as vm:
        vm.put(SCRIPT, "/root/napi_contract.py")
        argv = ["python3", "/root/napi_contract.py", vm.nic]
        answers: Answers = json.loads(vm.run(argv).stdout)
        vm.check_splats()
    return answers


@pytest.fixture(scope="module")
def ours() -> Answers:
    return ask(KERNELS[OURS]())


def test_only_the_named_napi_changes(ours: Answers) -> None:
    effects = ours["effects"]
    assert effects["before"] == [0, False]
    assert effects["on"] == [1, True]
    assert effects["neighbour"] == [0, False]
    assert effects["off"] == [0, False], "the thread must be gone, and its pid with it"


def test_errors_of_the_contract(ours: Answers) -> None:
    """Some answers that are known by heart, so that not two kernels are wrong in the same way."""
    expected = {
        ("up", "id absent"): EINVAL,
        ("up", "all else absent"): 0,
        ("up", "irq length 4"): EINVAL,
        ("up", "threaded max"): 0,
        ("up", "threaded max + 1"): ERANGE,
        ("up", "threaded length 2"): EINVAL,
        ("up", "gro-flush-timeout length 8"): 0,
        ("up", "defer-hard-irqs max + 1"): ERANGE,
        ("unknown id", "threaded max"): ENOENT,
        ("foreign namespace", "threaded max"): ENOENT,
        ("down", "threaded max"): ENOENT,
        ("down, not deleted", "threaded max"): ENOENT,
        ("no capability", "threaded max"): EPERM,
    }
    tables = ours["tables"]
    assert {case: tables[case[0]][case[1]]["errno"] for case in expected} == expected
    assert tables["up"]["id absent"]["miss"] == 2
    assert ours["down dump"] == 0


@pytest.mark.long
def test_answers_equal_on_both_kernels(ours: Answers) -> None:
    """Every attribute x absent, lengths, values x up, down, unknown id, namespace, capability."""
    # Debian's own kernel has no netdevsim.
    stock = ask(build("7.2", patched=False))
    for key in ours.keys() - {"tables"}:
        assert ours[key] == stock[key]
    differing = {
        (state, case): (answer, stock["tables"][state][case])
        for state, cases in ours["tables"].items()
        for case, answer in cases.items()
        if answer != stock["tables"][state][case]
    }
    assert differing == {}
    assert sum(len(cases) for cases in ours["tables"].values()) >= 6 * 8 * 8
