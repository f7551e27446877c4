#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Use a PCI Express slot without pciehp, the driver that does this: slot.py on | slot.py off.

on: give the slot power and look what is in it. off: let go of what is in it and take its power,
upon which QEMU takes the card out.
"""

import os
import struct
import sys
from pathlib import Path

BUS = Path("/sys/bus/pci")
BRIDGE = "0x060400"
# include/uapi/linux/pci_regs.h
PCI_CAPABILITY_LIST, PCI_CAP_ID_EXP, PCI_EXP_FLAGS, PCI_EXP_SLTCTL = 0x34, 0x10, 0x02, 0x18
PCI_EXP_FLAGS_SLOT = 0x100
SLTCTL_PCC, SLTCTL_PIC = 0x400, 0x300  # power controller (1 is off), power indicator
PIC_ON, PIC_OFF = 0x100, 0x300


def capability(data: bytes) -> int:
    """The offset of the PCI Express capability in a configuration space, 0 without one."""
    at = data[PCI_CAPABILITY_LIST]
    while at and data[at] != PCI_CAP_ID_EXP:
        at = data[at + 1]
    return at


def port() -> tuple[Path, int]:
    """The first bridge with a slot, and where its slot control register is."""
    for path in sorted((BUS / "devices").iterdir()):
        if (path / "class").read_text().strip() == BRIDGE:
            data = (path / "config").read_bytes()
            at = capability(data)
            if at and data[at + PCI_EXP_FLAGS + 1] << 8 & PCI_EXP_FLAGS_SLOT:
                return path.resolve(), at + PCI_EXP_SLTCTL
    raise SystemExit("no PCI Express slot")


def main() -> None:
    path, at = port()
    on = sys.argv[1] == "on"
    if not on:
        for card in path.glob("????:*"):
            (card / "remove").write_text("1")
    with open(path / "config", "r+b", buffering=0) as config:
        old = struct.unpack("<H", os.pread(config.fileno(), 2, at))[0]
        new = old & ~(SLTCTL_PCC | SLTCTL_PIC) | (PIC_ON if on else SLTCTL_PCC | PIC_OFF)
        os.pwrite(config.fileno(), struct.pack("<H", new), at)
    if on:
        (BUS / "rescan").write_text("1")


if __name__ == "__main__":
    main()
