# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests of the integration tests: one boot a kernel, the packages installed in it with apt.

A test that takes ``guest`` runs on every kernel of KERNELS, or on those its
``@pytest.mark.kernels(...)`` names. A worker of xdist has one guest at a time (lab/workers.py).
After every test the console must be free of kernel splats.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.compat import NOTSET
from _pytest.mark.structures import ParameterSet

from lab import debtools, oncemore, qemu, workers
from lab.base import BASES
from lab.kernel import KernelImage, build, debian_prebuilt
from lab.machine import GuestSpec
from lab.progress import StepFailed
from lab.vm import ANEW, Guest

TREE = Path(__file__).resolve().parents[2]
DEBS = TREE / "build" / "debs"
READER = TREE / "tests" / "lab" / "reader.py"
# What runs in the guests and imports nothing of rxlane.
SCRIPTS = Path(__file__).parent / "guest"

OURS, STOCK_72, DEBIAN_612 = "ours-6.12", "stock-7.2", "debian-6.12"
# KERNEL/FLAVOUR, such as ours-6.12/debug: the tests of `guest` run on that kernel alone, built with
# that configuration of tests/lab/kconfig.
VARIANT = os.environ.get("RXLANE_VARIANT", "")


def flavour(kernel: str) -> str:
    """The configuration that a kernel of our own is built with."""
    name, _, wanted = VARIANT.partition("/")
    return wanted if name == kernel else "fast"


def our_bases() -> list[ParameterSet]:
    """Bases with our series: 6.12, with `make check-long` 7.2 as well; the variant's alone."""
    name, _, _ = VARIANT.partition("/")
    if not name:
        return [pytest.param("6.12"), pytest.param("7.2", marks=pytest.mark.long)]
    side, _, base = name.partition("-")
    return [pytest.param(base)] if side == "ours" else []


def our_kernel(base: str) -> KernelImage:
    return build(base, flavour(f"ours-{base}"), patched=True)


def stock_72() -> KernelImage:
    """Debian's own, which takes a minute to get where a build takes fifteen; a variant is built."""
    if VARIANT.partition("/")[0] == STOCK_72:
        return build("7.2", flavour(STOCK_72), patched=False)
    return debian_prebuilt("7.2")


KERNELS: dict[str, Callable[[], KernelImage]] = {
    OURS: partial(our_kernel, "6.12"),
    STOCK_72: stock_72,
    DEBIAN_612: partial(debian_prebuilt, "6.12"),
}

Settings = dict[str, Any]

TUNED_LOG = "/var/log/tuned/tuned.log"

# Units of the guest that answer to links that come and go.
MANAGERS = ("irqbalance", "systemd-networkd.socket", "systemd-networkd",
            "systemd-udevd-control.socket", "systemd-udevd-kernel.socket",
            "systemd-udevd")  # fmt: skip

# To stop it once it has moved interrupts is too late: drivers place them anew meanwhile.
UNBALANCED = "systemd.mask=irqbalance.service"

# What guest/stress.py and all that imports it need beside them.
STRESS = ("napi_contract.py", "links.py", "evidence.py", "stress.py")


@dataclass(frozen=True)
class Host:
    """A booted guest with rxlane's packages, and what the tests ask of it most."""

    kernel: str
    vm: Guest

    def run(self, *argv: str, timeout: float = 120, check: bool = True) -> Any:
        return self.vm.run(list(argv), timeout=timeout, check=check)

    def settings(self) -> Settings:
        """Every setting keyed "dev/queue/item", by the reader that knows nothing of rxlane."""
        settings: Settings = json.loads(self.run("python3", "/root/reader.py").stdout)
        return settings

    def verify_by_tuned(self) -> None:
        """TuneD finds everything as its profile wants; fails with what it says is not."""
        done = self.run("tuned-adm", "verify", timeout=180, check=False)
        if done.rc != 0 or "succeeded" not in done.stdout.lower():
            said = self.run("grep", "verify: failed", TUNED_LOG, check=False).stdout
            pytest.fail("\n".join([done.stdout + done.stderr, *said.splitlines()[-10:]]))

    def lanes(self, device: str) -> list[dict[str, Any]]:
        """What ``rxlane map --json`` says of one device's lanes."""
        shown = json.loads(self.run("rxlane", "map", "--json", device).stdout)
        found: list[dict[str, Any]] = shown["devices"][0]["lanes"]
        return found


def differing(before: Settings, after: Settings) -> dict[str, tuple[object, object]]:
    """{setting: (before, after)} of those that are not as they were, None where there is none."""
    keys = before.keys() | after.keys()
    return {k: (before.get(k), after.get(k)) for k in keys if before.get(k) != after.get(k)}


def device_of(host: Host, driver: str) -> str:
    """The name of a NIC of this driver; the test fails where there is none."""
    links = host.run("sh", "-c", "ls -d /sys/class/net/*/device/driver").stdout.split()
    for link in links:
        if host.run("readlink", link).stdout.strip().endswith(f"/{driver}"):
            name: str = link.split("/")[4]
            return name
    pytest.fail(f"the guest has no device of {driver}")


def missing(reason: str) -> NoReturn:
    """Skips the test for what this machine lacks; fails it where RXLANE_STRICT=1."""
    if os.environ.get("RXLANE_STRICT") == "1":
        pytest.fail(f"RXLANE_STRICT=1 and {reason}")
    pytest.skip(reason)


def older_kernel(reason: str) -> NoReturn:
    """Skips the test, also where RXLANE_STRICT=1, for what only another kernel could bring.

    For tests on the machine's own kernel alone; guest tests have the same on kernels of ours.
    """
    pytest.skip(reason)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "kernels(*names, long=()): the kernels a guest test runs on, also in check-long"
    )
    config.addinivalue_line("markers", "long: minutes each; make check-long")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "guest" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("kernels")
        names = marker.args if marker else tuple(KERNELS)
        more = marker.kwargs.get("long", ()) if marker else ()
        later = (pytest.param(name, marks=pytest.mark.long) for name in more)
        metafunc.parametrize("guest", [*names, *later], indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With RXLANE_VARIANT, leaves out the tests of every other kernel."""
    if not VARIANT:
        if never := [item.nodeid for item in items if kernel_of(item) is None]:
            raise pytest.UsageError(f"parametrized with nothing: {', '.join(never)}")
        return
    name = VARIANT.partition("/")[0]
    others = [item for item in items if kernel_of(item) != name]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if kernel_of(item) == name]


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Runs each test once, or once more where the emulation took its guest away."""
    return oncemore.protocol(item, nextitem)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tells of guests that were booted once more: what a test passed after that has not shown."""
    if ANEW:
        terminalreporter.section("guests booted once more")
    for why in ANEW:
        terminalreporter.line(why)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> workers.ByGuest:
    return workers.ByGuest(config, log, KERNELS)


def pytest_sessionfinish(session: pytest.Session) -> None:
    workers.hand_over(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    workers.take(node)


def kernel_of(item: pytest.Item) -> str | None:
    """The kernel of the test's guest; None for a test whose parameters are an empty list.

    Tests that boot a guest of their own name a base with our series, or take our 6.12.
    """
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    if NOTSET in params.values():
        return None
    base = next((params[name] for name in ("machine", "base") if params.get(name) in BASES), "6.12")
    guest: str = params.get("guest", f"ours-{base}")
    return guest


@pytest.fixture(scope="session")
def debs() -> list[Path]:
    """The packages as apt gets them; built here when the tests are run on their own."""
    if not list(DEBS.glob("*.deb")):
        subprocess.run([TREE / "packaging" / "build-debs"], check=True)
    return sorted(DEBS.glob("*.deb"))


@pytest.fixture(scope="session")
def tool_debs() -> list[Path]:
    """ethtool and iproute2 with our patches, as packages of the guests' Debian."""
    return debtools.packages()


def install(host: Host, debs: list[Path], tool_debs: list[Path]) -> None:
    """All packages with apt, from the shared disk."""
    files = [f"debs/{deb.name}" for deb in debs] + [deb.name for deb in tool_debs]
    host.run("apt-get", "install", "-y", *(f"/mnt/share/{name}" for name in files), timeout=300)


@pytest.fixture(scope="session")
def guest(
    request: pytest.FixtureRequest, debs: list[Path], tool_debs: list[Path]
) -> Iterator[Host]:
    kernel = KERNELS[request.param]()
    spec = GuestSpec(
        cpus=8, sockets=2, threads=2, numa=2, memory_mb=2048, queues=4, e1000e=True, vmxnet3=True,
        share=[DEBS, *tool_debs], extra_cmdline=UNBALANCED,
    )  # fmt: skip
    with Guest(kernel, spec) as vm:
        vm.put(READER, "/root/reader.py")
        host = Host(request.param, vm)
        install(host, debs, tool_debs)
        yield host
        if flavour(host.kernel) == "debug":
            vm.check_leaks()


@pytest.fixture(scope="session")
def igb() -> str:
    """Why no QEMU here emulates igb; empty when one does."""
    try:
        qemu.having(("igb",))
    except StepFailed as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def no_splat(request: pytest.FixtureRequest) -> Iterator[None]:
    """A BUG, WARNING, lockdep or RCU report on the console fails the test that provoked it."""
    yield
    if "guest" in request.fixturenames:
        host: Host = request.getfixturevalue("guest")
        host.vm.check_splats()
