# SPDX-License-Identifier: GPL-2.0-or-later
"""Instructions that each CPU of an emulated guest executes, counted by a plugin of QEMU's.

What two host cores do to a guest of more CPUs changes how long a packet takes there, not how many
instructions it takes on which CPU.
"""

import struct
from pathlib import Path

from lab.cache import built, digest
from lab.progress import tool
from lab.qemu import Qemu

SOURCE = Path(__file__).with_name("instructions.c")
COUNTS = "instructions"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
# The first major version of QEMU that takes no plugins of version 1 any more.
SECOND = 9


def interface(version: int) -> int:
    """The version of the plugin interface for a QEMU of this major version."""
    return 2 if version >= SECOND else 1


def arguments(program: Qemu, folder: Path) -> list[str]:
    """Words for a QEMU that is to count in ``folder``. StepFailed where it cannot be compiled."""
    words = (*FLAGS, f"-DPLUGIN_VERSION={interface(program.version)}")

    def make(out: Path) -> None:
        tool(["gcc", *words, "-o", out / "instructions.so", SOURCE])

    made = built("plugins", digest([SOURCE.read_bytes(), *words]), make)
    return ["-plugin", f"file={made / 'instructions.so'},{COUNTS}={folder / COUNTS}"]


def read(folder: Path, cpus: int) -> list[int]:
    """Instructions of each CPU since the guest was started."""
    return list(struct.unpack_from(f"={cpus}Q", (folder / COUNTS).read_bytes()))
