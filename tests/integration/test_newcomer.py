# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-packages`: from a clean Debian 13 to a host that is laid out after every boot.

As README and manuals tell it: the packages are built in a root with nothing but git and make, and
so is a kernel's package, of Debian's source with the series; both are installed in a guest that
boots that kernel. The lab's configuration stands for that of the running kernel, which would take
hours to build and is the lab's business elsewhere (`make check-series`).
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from manuals import blocks, commands
from packaged import file_system

from conftest import OURS, READER, TREE, Host, Settings
from lab.base import read_base
from lab.cleanroot import CleanRoot
from lab.kernel import KernelImage, build
from lab.machine import GuestSpec
from lab.progress import tool
from lab.vm import Guest

pytestmark = pytest.mark.long

MANUAL = TREE / "packaging" / "kernel" / "rxlane-kernel-patches.1"
CLONE = "/root/rxlane"
SUFFIX = "-rxlane"
PROFILE = "net-low-latency"


@pytest.fixture(scope="module")
def clean() -> Iterator[CleanRoot]:
    with tempfile.TemporaryDirectory() as folder:
        root = CleanRoot(Path(folder), ("git", "make", "ca-certificates"))
        root.path("/etc/apt/apt.conf.d/90lab").write_text('APT::Get::Assume-Yes "true";\n')
        tool(["git", "clone", "--quiet", TREE, root.path(CLONE)])
        yield root


@pytest.fixture(scope="module")
def packages(clean: CleanRoot) -> Path:
    """The folder of the packages that were built in the clean root."""
    clean.run("make debs", CLONE)
    return clean.path(f"{CLONE}/build/debs")


@pytest.fixture(scope="module")
def kernel(clean: CleanRoot, packages: Path) -> Path:
    """The package of a kernel, made by the commands of the manual."""
    (block,) = blocks(MANUAL)
    running = "cp /boot/config-$(uname -r) .config"
    assert block.count(running) == 1
    config = build("6.12", "fast", patched=True).bzimage.parent / "config"
    clean.path("/root/config").write_bytes(config.read_bytes())
    clean.run(f"apt-get install {CLONE}/build/debs/rxlane-kernel-patches_*.deb")
    clean.run("\n".join(commands(block.replace(running, "cp ../config .config"))))
    (image,) = clean.path("/root").glob(f"linux-image-*{SUFFIX}_*.deb")
    assert read_base("6.12").version.rpartition("-")[0] in image.name
    return image


@pytest.fixture(scope="module")
def host(packages: Path, kernel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    content = tmp_path_factory.mktemp("kernel")
    tool(["dpkg-deb", "-x", kernel, content])
    (image,) = content.glob("boot/vmlinuz-*")
    release = image.name.removeprefix("vmlinuz-")
    booted = KernelImage(image, release, "6.12", "fast", patched=True)
    with Guest(booted, GuestSpec(cpus=4, queues=4, share=[packages, kernel])) as vm:
        vm.put(READER, "/root/reader.py")
        vm.run(["systemctl", "disable", "--now", "irqbalance"], timeout=60)
        yield Host(OURS, vm)
        vm.check_splats()


def test_from_nothing_to_every_boot_and_back(host: Host, kernel: Path) -> None:
    assert host.run("uname", "-r").stdout.strip().endswith(SUFFIX)
    host.run("apt-get", "install", "-y", f"/mnt/share/{kernel.name}", timeout=300)
    files, settings = file_system(host), host.settings()
    host.run("sh", "-c", "apt-get install -y /mnt/share/debs/*.deb", timeout=300)

    host.run("tuned-adm", "profile", PROFILE, timeout=180)
    applied = host.settings()
    changed = {key for key in applied if applied[key] != settings.get(key)}
    assert changed
    host.vm.reboot()
    host.verify_by_tuned()
    again = host.settings()
    assert {key: again[key] for key in changed} == {key: applied[key] for key in changed}

    names = (row.split("_")[0] for row in host.run("ls", "/mnt/share/debs").stdout.split())
    host.run("apt-get", "purge", "-y", *names, timeout=300)
    assert _but_interrupts(host.settings()) == _but_interrupts(settings)
    assert sorted(file_system(host) ^ files) == []


def _but_interrupts(settings: Settings) -> Settings:
    """Where the kernel puts an interrupt that nobody moves is not the same in each boot."""
    return {key: value for key, value in settings.items() if not key.startswith("irq/")}
