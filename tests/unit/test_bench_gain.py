# SPDX-License-Identifier: GPL-2.0-or-later
"""bench.gain: which queue and CPU a flow arrives on, from /proc/interrupts."""

from bench.gain import interrupts

# Recorded in a guest with 2 CPUs (6.12, two virtio devices); columns cut to the rows in question.
TABLE = """\
           CPU0       CPU1
  1:          9          0   IO-APIC   1-edge      i8042
 25:          0          0  PCI-MSIX-0000:00:03.0   0-edge      virtio1-config
 26:         12          3  PCI-MSIX-0000:00:03.0   1-edge      virtio1-input.0
 27:          1          0  PCI-MSIX-0000:00:03.0   2-edge      virtio1-output.0
 28:          0        204  PCI-MSIX-0000:00:03.0   3-edge      virtio1-input.1
 30:          7          7  PCI-MSIX-0000:00:04.0   1-edge      virtio11-input.1
NMI:          0          0   Non-maskable interrupts
ERR:          0
"""


def test_only_the_devices_receive_rows() -> None:
    assert interrupts(TABLE, "virtio1") == {(0, 0): 12, (0, 1): 3, (1, 0): 0, (1, 1): 204}


def test_where_a_flow_arrived() -> None:
    later = TABLE.replace("204", "804").replace(" 12 ", " 15 ")
    taken = interrupts(later, "virtio1") - interrupts(TABLE, "virtio1")
    assert taken.most_common(1) == [((1, 1), 600)]


def test_device_without_such_interrupts() -> None:
    assert interrupts(TABLE, "virtio2") == {}
