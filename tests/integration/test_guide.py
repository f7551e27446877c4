# SPDX-License-Identifier: GPL-2.0-or-later
"""The operator's guide: its commands are run in their order, and leave every setting as it was."""

import re
from pathlib import Path

import pytest

from conftest import OURS, TREE, Host

GUIDE = TREE / "plugins" / "doc" / "guide.md"
NIC = "eth0"


def commands(guide: Path) -> list[str]:
    """The lines of all blocks. Blocks of another kind than sh would not be tried."""
    text = guide.read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)
    assert 2 * len(blocks) == len(re.findall(r"^```", text, re.M))
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.kernels(OURS)
def test_commands_of_the_guide(guest: Host) -> None:
    before = guest.settings()
    guest.run("ip", "link", "property", "add", "dev", guest.vm.nic, "altname", NIC)
    try:
        for line in commands(GUIDE):
            # A login of its own for each: what confirms must not be what applied.
            done = guest.run("setsid", "--wait", "sh", "-c", line, timeout=300, check=False)
            assert done.rc == 0, f"{line}: {done.stdout}{done.stderr}"
            print(f"$ {line}\n{done.stdout}")
    finally:
        guest.run("tuned-adm", "off", check=False)
        guest.run("rxlane", "rollback", check=False)
        guest.run("ip", "link", "property", "del", "dev", guest.vm.nic, "altname", NIC)
    assert guest.settings() == before
