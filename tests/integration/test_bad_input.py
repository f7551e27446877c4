# SPDX-License-Identifier: GPL-2.0-or-later
"""Bad input at every door of the command: one clear line, nothing changed."""

from collections.abc import Iterator

import pytest

from conftest import OURS, Host, differing

NIC = "{nic}"
SPACE = "elsewhere"
CASES = [
    ("map", "nosuch0"),
    ("map", ""),
    ("map", "a" * 4000),
    ("map", "../../etc"),
    ("plan", NIC),
    ("plan", NIC, "-o", "threaded"),
    ("plan", NIC, "-o", "threaded=sometimes"),
    ("plan", NIC, "-o", "threaded=on@9"),
    ("plan", NIC, "-o", "threaded=on@3-1"),
    ("plan", NIC, "-o", "nonsense=1"),
    ("apply", "nosuch0", "-o", "threaded=on"),
    ("apply", NIC, "-o", "threaded=on", "-o", "thread_cpus=64"),
    ("apply", NIC, "-o", "threaded=on", "-o", "thread_cpus=0-99999999999"),
    ("apply", NIC, "-o", "threaded=on", "-o", "thread_cpus=1,,2"),
    ("apply", NIC, "-o", "threaded=on", "-o", "thread_policy=fifo", "-o", "thread_priority=99"),
    ("apply", NIC, "-o", "threaded=on", "-o", "thread_policy=fifo", "-o", "thread_cpus=0"),
    ("apply", NIC, "-o", "threaded=on", "-o", "thread_nice=20"),
    ("apply", NIC, "-o", "defer_hard_irqs=-1"),
    ("apply", NIC, "-o", "gro_flush_timeout=18446744073709551616"),
    ("apply", NIC, "-o", "gro_flush_timeout=0x10"),
]


@pytest.fixture(scope="module")
def unchanged(guest: Host) -> Iterator[None]:
    """Every setting is the same after all these requests as before them."""
    before = guest.settings()
    yield
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(OURS)
@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("words", CASES, ids=lambda words: " ".join(words)[:60])
def test_one_line_and_nothing_changed(guest: Host, words: tuple[str, ...]) -> None:
    argv = [guest.vm.nic if word == NIC else word for word in words]
    done = guest.run("rxlane", *argv, check=False)
    assert done.rc == 2, (done.rc, done.stdout, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr and len(lines[0]) < 400


@pytest.mark.kernels(OURS)
@pytest.mark.usefixtures("unchanged")
def test_another_network_namespace(guest: Host) -> None:
    """Neither are originals of devices that are not seen there given up, nor a guard started that
    would not see them; back home the rollback still knows them.
    """
    before = guest.settings()
    guest.run("rxlane", "apply", "-o", "threaded=on@1-", guest.vm.nic)
    applied = guest.settings()
    guest.run("ip", "netns", "add", SPACE)
    try:
        for words in (("rollback",), ("apply", "-o", "threaded=off", "lo"), ("verify",)):
            refused(
                guest, "another network namespace", "ip", "netns", "exec", SPACE, "rxlane", *words
            )
        assert guest.settings() == applied
        guest.run("rxlane", "rollback")
        assert differing(before, guest.settings()) == {}
        options = ("-o", "threaded=off", "--confirm", "60", "lo")
        refused(guest, "PID 1", "ip", "netns", "exec", SPACE, "rxlane", "apply", *options)
    finally:
        guest.run("rxlane", "rollback")
        guest.run("ip", "netns", "del", SPACE)


@pytest.mark.kernels(OURS)
@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("words", [("map",), ("apply", "-o", "rps=1", "lo"), ("rollback",)])
def test_a_namespace_without_its_own_sys(guest: Host, words: tuple[str, ...]) -> None:
    """As nsenter -n enters a container's: what is written to /sys would be the host's."""
    refused(guest, "/sys is of another network namespace", "unshare", "--net", "rxlane", *words)


def refused(guest: Host, why: str, *argv: str) -> None:
    done = guest.run(*argv, check=False)
    assert done.rc == 2 and why in done.stderr, (argv, done)
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
