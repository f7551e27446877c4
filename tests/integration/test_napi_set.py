# SPDX-License-Identifier: GPL-2.0-or-later
"""NETDEV_CMD_NAPI_SET of our 6.12 answers as stock 7.2 does, error for error."""

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import KERNELS, OURS, STOCK_72
from lab.vm import Guest, GuestSpec

SCRIPT = Path(__file__).parent / "guest" / "napi_contract.py"
EPERM, ENOENT, EINVAL, ERANGE = 1, 2, 22, 34

Answers = dict[str, Any]


def ask(kernel: str) -> Answers:
    with Guest(KERNELS[kernel](), GuestSpec(cpus=2)) as vm:
        vm.put(SCRIPT, "/root/napi_contract.py")
        answers: Answers = json.loads(vm.run(["python3", "/root/napi_contract.py"]).stdout)
        vm.check_splats()
    return answers


@pytest.fixture(scope="module")
def answers() -> dict[str, Answers]:
    return {kernel: ask(kernel) for kernel in (OURS, STOCK_72)}


def test_only_the_named_napi_changes(answers: dict[str, Answers]) -> None:
    effects = answers[OURS]["effects"]
    assert effects["before"] == [0, False]
    assert effects["on"] == [1, True]
    assert effects["neighbour"] == [0, False]
    assert effects["off"] == [0, False], "the thread must be gone, and its pid with it"


def test_errors_of_the_contract(answers: dict[str, Answers]) -> None:
    expected = {
        "id missing": EINVAL,
        "only id": 0,
        "id unknown": ENOENT,
        "foreign namespace": ENOENT,
        "down": ENOENT,
        "no capability": EPERM,
        "irq refused": EINVAL,
        "threaded/value 3": ERANGE,
        "threaded/length 2": EINVAL,
        "defer/value 2147483648": ERANGE,
    }
    assert {case: answers[OURS][case]["errno"] for case in expected} == expected
    assert answers[OURS]["id missing"]["miss"] == 2
    assert answers[OURS]["down dump"] == 0


def test_answers_equal_on_both_kernels(answers: dict[str, Answers]) -> None:
    ours, stock = answers[OURS], answers[STOCK_72]
    assert ours.keys() == stock.keys()
    differing = {case: (ours[case], stock[case]) for case in ours if ours[case] != stock[case]}
    assert differing == {}
