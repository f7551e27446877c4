# SPDX-License-Identifier: GPL-2.0-or-later
"""README, guide and manuals: their commands run in their order and leave every setting as it was.

The guest's NIC stands for eth0, and the guest itself for the host that is reached by ssh.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from manuals import COMMAND, GUIDE, LINK, MARKDOWN, TUNED, blocks, commands

from conftest import OURS, TREE, Host

NETWORK = "/etc/systemd/network"
WORK = "/root/manuals"
PROFILE = "/etc/tuned/profiles/manual/tuned.conf"
PATIENCE = 30  # seconds


def is_text(block: str) -> bool:
    """A part of a file, not commands."""
    return block.startswith(("[", "# /"))


@pytest.fixture
def try_out(guest: Host) -> Iterator[Callable[[list[str]], None]]:
    """Runs commands, each in a login of its own: what confirms must not be what applied."""

    def run(lines: list[str]) -> None:
        for line in lines:
            line = line.replace("eth0", guest.vm.nic)
            script = f'cd {WORK}; ssh() {{ shift; "$@"; }}; {line}'
            done = guest.run("setsid", "--wait", "sh", "-c", script, timeout=300, check=False)
            assert done.rc == 0, f"{line}: {done.stdout}{done.stderr}"
            print(f"$ {line}\n{done.stdout}")

    before = guest.settings()
    guest.run("mkdir", "-p", f"{WORK}/build")
    guest.run("ln", "-sfn", "/mnt/share/debs", f"{WORK}/build/debs")
    yield run
    guest.run("tuned-adm", "off", check=False)
    guest.run("rxlane", "rollback", check=False)
    guest.run("rm", "-r", WORK)
    assert guest.settings() == before


@contextmanager
def file(guest: Host, path: str, text: str) -> Iterator[None]:
    guest.run("mkdir", "-p", path.rpartition("/")[0])
    guest.vm.put(text.replace("eth0", guest.vm.nic).encode(), path)
    try:
        yield
    finally:
        guest.run("rm", path)


@pytest.mark.kernels(OURS)
@pytest.mark.parametrize("manual", [GUIDE, COMMAND], ids=lambda path: path.name)
def test_commands(guest: Host, try_out: Callable[[list[str]], None], manual: Path) -> None:
    assert len(blocks(manual)) >= 3
    if manual.suffix == ".md":
        assert 2 * len(blocks(manual)) == len(re.findall(r"^```", manual.read_text(), re.M))
    for block in blocks(manual):
        assert not is_text(block)
        try_out(commands(block))


@pytest.mark.kernels(OURS)
def test_readme_on_a_host(guest: Host, try_out: Callable[[list[str]], None]) -> None:
    """The blocks around it are of make, which the tests themselves are run by."""
    text = (TREE / "README.md").read_text().partition("\n## On a host\n")[2]
    (block,) = MARKDOWN.findall(text.partition("\n## ")[0])
    try_out(commands(block))


@pytest.mark.kernels(OURS)
def test_sections_of_rxlane_tuned(guest: Host, try_out: Callable[[list[str]], None]) -> None:
    """The sections as a profile, and the commands for a profile."""
    sections, switch = blocks(TUNED)
    with file(guest, PROFILE, sections):
        try_out([line.replace("net-low-latency", "manual") for line in commands(switch)])
        try_out(commands(switch))


@pytest.mark.kernels(OURS)
def test_files_of_rxlane_link(guest: Host, try_out: Callable[[list[str]], None]) -> None:
    """What was tried becomes permanent as the manual says, and the interface is free again."""
    part, rule, own, at_once = blocks(LINK)
    nic = guest.vm.nic
    with file(guest, "/etc/udev/rules.d/70-lanes.rules", rule):
        guest.run("udevadm", "verify", "/etc/udev/rules.d/70-lanes.rules")
    builtin = ("udevadm", "test-builtin", "net_setup_link", f"/sys/class/net/{nic}")
    dropin = f"{NETWORK}/70-{nic}.link.d"
    free = _modes(guest)
    try:
        try_out(["rxlane apply -o threaded=on@1- -o thread_cpus=auto eth0"])
        tried = _modes(guest)
        assert tried.count("on") == 3, tried
        try_out([*commands(own), "rxlane rollback", *commands(at_once)])
        assert _until(guest, lambda: _modes(guest) == tried)
        with file(guest, f"{dropin}/60-part.conf", part):
            said = guest.run(*builtin)
            assert "NAPI_DEFER_HARD_IRQS=2" in said.stdout + said.stderr
    finally:
        guest.run("rm", "-rf", f"{NETWORK}/70-{nic}.link", dropin)
        try_out(commands(at_once))
    assert _until(guest, lambda: _modes(guest) == free)


def _modes(guest: Host) -> list[str]:
    return [lane["mode"] for lane in guest.lanes(guest.vm.nic)]


def _until(guest: Host, holds: Callable[[], bool]) -> bool:
    """Whether it comes to hold; each look takes the guest about a second."""
    return any(holds() for _ in range(PATIENCE))
