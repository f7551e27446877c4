# SPDX-License-Identifier: GPL-2.0-or-later
"""Which CPUs the kernel gives to helper threads, on a machine of packages, cores and siblings.

On our 6.12; with `make check-long` on our 7.2. There, too, with kernels in which virtio_net asks
for threads and an architecture makes its own choice, which here no driver and none does.
"""

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from conftest import MANAGERS, our_bases, our_kernel
from lab.kernel import Edit, build
from lab.machine import GuestSpec
from lab.vm import Guest

CPUS, CORES, PACKAGES = 8, 4, 2
# Of all interrupts; it is left by those that do not come in yet.
IRQ_CPU, SETTLE_S = 0, 20
LEAVING = 5
# Of the package that the other NIC is told to be at, and of its memory.
NODE = 1
DRIVER = "drivers/net/virtio_net.c"
DEFAULT = 3
# More than are online, and none for the last but one.
CHOICE = "index == 2 ? -1 : index == 1 ? 4096 : 5"
EDITS = (
    Edit(
        DRIVER,
        "	err = register_netdevice(dev);\n",
        f"	netif_set_rx_threads_default(dev, {DEFAULT});\n	err = register_netdevice(dev);\n",
    ),
    Edit(
        DRIVER,
        "MODULE_DEVICE_TABLE(virtio, id_table);\n",
        "int arch_rx_thread_cpu(const struct net_device *dev, unsigned int index)\n"
        f"{{\n	return {CHOICE};\n}}\n",
    ),
)

Topology = dict[int, tuple[int, int]]


def spec() -> GuestSpec:
    return GuestSpec(
        cpus=CPUS, sockets=PACKAGES, cores=CORES // PACKAGES, threads=2, numa=PACKAGES,
        queues=1, e1000e=True,
    )  # fmt: skip


@pytest.fixture(scope="module", params=our_bases())
def machine(request: pytest.FixtureRequest) -> Iterator[Guest]:
    with Guest(our_kernel(request.param), spec()) as vm:
        vm.run(["systemctl", "stop", *MANAGERS])
        vm.bind_interrupts(IRQ_CPU)
        wait_for_interrupts(vm)
        yield vm
        vm.check_splats()


def places_of(vm: Guest, *names: str) -> list[int]:
    """The CPUs of the interrupts that have these names."""
    listing = f"ls -d {' '.join(f'/proc/irq/*/{name}' for name in names)}"
    folders = [name.rpartition("/")[0] for name in vm.run(["sh", "-c", listing]).stdout.split()]
    return [int(vm.read(f"{one}/effective_affinity_list")) for one in folders]


def wait_for_interrupts(vm: Guest, cpu: int = IRQ_CPU) -> None:
    """An x86 moves one when it comes next, and without traffic none does."""
    end = time.monotonic() + SETTLE_S
    while True:
        vm.ping()
        vm.ping("e1000e")
        places = places_of(vm, "*-input.0", "*-rx-0")
        if len(places) == 2 and set(places) == {cpu}:
            return
        assert time.monotonic() < end, places


def topology(vm: Guest) -> Topology:
    """{CPU: (package, core of it)} as the guest's kernel tells."""
    files = "cd /sys/devices/system/cpu && grep . cpu[0-9]*/topology/{physical_package,core}_id"
    values: dict[tuple[int, str], int] = {}
    for line in vm.run(["bash", "-c", files]).stdout.split():
        path, value = line.split(":")
        cpu, _topology, name = path.split("/")
        values[int(cpu.removeprefix("cpu")), name] = int(value)
    found = {
        cpu: (values[cpu, "physical_package_id"], values[cpu, "core_id"]) for cpu in range(CPUS)
    }
    assert len(set(found.values())) == CORES and len({one for one, _core in found.values()}) == 2
    return found


def set_threads(vm: Guest, dev: str, number: int) -> list[int]:
    """The CPUs of so many helper threads."""
    folder = f"/sys/class/net/{dev}"
    vm.run(["sh", "-c", f"echo {number} > {folder}/rx_threads"])
    return cpus_of(vm, dev, number)


def cpus_of(vm: Guest, dev: str, number: int) -> list[int]:
    files = [f"/sys/class/net/{dev}/rx_thread/{index}/cpu" for index in range(number)]
    return [int(vm.read(file)) for file in files]


def test_cores_come_before_siblings_and_away_from_interrupts(machine: Guest) -> None:
    cores = topology(machine)
    by_number = {n: set_threads(machine, machine.nic, n) for n in (1, CORES - 1, CPUS - 1, CPUS)}
    set_threads(machine, machine.nic, 0)
    print(cores, by_number)
    # The other package, since the interrupt takes something of its own.
    assert cores[by_number[1][0]][0] != cores[IRQ_CPU][0]
    few = [cores[cpu] for cpu in by_number[CORES - 1]]
    assert len({*few, cores[IRQ_CPU]}) == CORES
    # All others before that of the interrupt, and no CPU twice.
    assert {*by_number[CPUS - 1]} == {*range(CPUS)} - {IRQ_CPU}
    assert {*by_number[CPUS]} == {*range(CPUS)}


def test_packages_have_as_many(machine: Guest) -> None:
    cores = topology(machine)
    cpus = set_threads(machine, machine.nic, CORES - 1)
    set_threads(machine, machine.nic, 0)
    by_package = Counter(cores[cpu][0] for cpu in (IRQ_CPU, *cpus))
    assert set(by_package.values()) == {CORES // PACKAGES}


def test_devices_go_to_different_cpus(machine: Guest) -> None:
    cores, other = topology(machine), machine.nic_of("e1000e")
    first, second = set_threads(machine, machine.nic, 2), set_threads(machine, other, 1)
    more = set_threads(machine, other, 4)
    for dev in (machine.nic, other):
        set_threads(machine, dev, 0)
    print(first, second, more)
    assert len({cores[cpu] for cpu in (IRQ_CPU, *first, *second)}) == CORES
    assert not {*first, IRQ_CPU} & {*more} and len({*more}) == len(more)


def test_those_near_the_device_come_first(machine: Guest) -> None:
    cores, dev = topology(machine), machine.nic_of("e1000e")
    file = f"/sys/class/net/{dev}/device/numa_node"
    before = machine.read(file).decode().strip()
    machine.run(["sh", "-c", f"echo {NODE} > {file}"])
    cpus = set_threads(machine, dev, 3)
    set_threads(machine, dev, 0)
    machine.run(["sh", "-c", f"echo {before} > {file}"])
    # A core of its own counts for more: the third goes to the other node.
    assert [cores[cpu][0] == NODE for cpu in cpus] == [True, True, False]


def test_interrupts_that_a_cpu_takes_along_are_followed(machine: Guest) -> None:
    """To where there is a thread, unless the one CPU without any happens to be that."""
    online = f"/sys/devices/system/cpu/cpu{LEAVING}/online"
    machine.bind_interrupts(LEAVING)
    wait_for_interrupts(machine, LEAVING)
    before = set_threads(machine, machine.nic, CPUS - 2)
    machine.run(["sh", "-c", f"echo 0 > {online}"])
    end = time.monotonic() + SETTLE_S
    while True:
        (place,) = {*places_of(machine, "*-input.0")}
        after = cpus_of(machine, machine.nic, CPUS - 2)
        if {*after, place, LEAVING} == {*range(CPUS)} or time.monotonic() > end:
            break
        time.sleep(0.2)
    set_threads(machine, machine.nic, 0)
    machine.run(["sh", "-c", f"echo 1 > {online}"])
    machine.bind_interrupts(IRQ_CPU)
    wait_for_interrupts(machine)
    print(before, after, place)
    assert LEAVING not in before and {*after} == {*range(CPUS)} - {place, LEAVING}


@pytest.mark.long
@pytest.mark.parametrize("base", ["6.12", "7.2"])
def test_drivers_and_architectures_have_their_say(base: str) -> None:
    kernel = build(base, edits=EDITS)
    with Guest(kernel, spec()) as vm:
        vm.ping()
        number = int(vm.read(f"/sys/class/net/{vm.nic}/rx_threads"))
        cpus = cpus_of(vm, vm.nic, number)
        other = vm.read(f"/sys/class/net/{vm.nic_of('e1000e')}/rx_threads")
        taken = vm.run(["sh", "-c", f"cat /sys/class/net/{vm.nic}/rx_thread/*/packets"]).stdout
        set_threads(vm, vm.nic, 0)
        vm.ping()
        vm.check_splats()
    print(cpus, taken)
    assert number == DEFAULT and int(other) == 0
    # One that is not there, and none, leave the usual choice.
    assert cpus[0] == 5 and 5 not in cpus[1:] and len({*cpus}) == DEFAULT
    assert sum(int(word) for word in taken.split()) > 0
