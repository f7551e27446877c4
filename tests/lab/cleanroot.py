# SPDX-License-Identifier: GPL-2.0-or-later
"""Debian roots of their own that commands run in, as on a machine that nobody has prepared.

Neither the machine's files nor its other processes are seen in them.
"""

import shutil
from pathlib import Path

from lab import apt
from lab.progress import step, tool
from lab.rootfs import SUITE

ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}


def entered(root: Path, folder: str, argv: list[str], *, net: bool) -> list[str]:
    """What runs ``argv`` in ``folder`` of the root, with the machine's network or without."""
    return [
        *("unshare", "--mount", "--pid", "--fork", *(() if net else ("--net",)), "--mount-proc"),
        *(f"--root={root}", f"--wd={folder}", *argv),
    ]


class CleanRoot:
    """A Debian 13 with apt and what ``having`` names, below ``folder``; removed by the caller."""

    def __init__(self, folder: Path, having: tuple[str, ...]) -> None:
        self.root, self._log = folder / "root", folder / "log"
        mirror = apt.mirrors()["Debian"]
        with step("making a clean Debian 13"):
            tool(
                ["mmdebstrap", "--mode=root", "--variant=apt", "--quiet",
                 f"--include={','.join(having)}", '--aptopt=APT::Install-Recommends "false"',
                 SUITE, self.root, f"deb [signed-by={apt.KEYRING}] {mirror} {SUITE} main"]
            )  # fmt: skip
        shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")

    def run(self, script: str, folder: str = "/root") -> None:
        """Runs a shell's commands, up to the first that fails: StepFailed with its tail."""
        argv = ["sh", "-ec", script]
        with step(f"in the clean root: {script.splitlines()[-1]}"):
            tool(entered(self.root, folder, argv, net=True), env=ENVIRONMENT, log=self._log)

    def path(self, name: str) -> Path:
        """A file of the root, as this machine names it."""
        return self.root / name.lstrip("/")
