# SPDX-License-Identifier: GPL-2.0-or-later
"""The guests' Debian root: made by mmdebstrap, kept as an ext4 image, never written to.

A guest boots it through a snapshot, so every boot starts from the same bytes.
"""

import shutil
from functools import partial
from pathlib import Path

from lab import apt
from lab.cache import built, digest
from lab.progress import step, tool

SUITE = "trixie"
OLDER_SUITE = "bookworm"  # with a systemd that has no Property= in .link files
IMAGE_SIZE = "3G"
# What the guest needs, and why.
PACKAGES = (
    "systemd-sysv", "udev", "dbus",  # the init and device manager under test
    "tuned", "irqbalance",  # what rxlane plugs into, and what works against it
    "ethtool", "iproute2", "iputils-ping", "procps", "util-linux", "kmod",  # the tools
    "netperf", "iperf3", "socat",  # load, and what the kernel's own selftests send with
    "python3", "python3-pyroute2", "python3-yaml", "patch",  # what our packages depend on
    "qemu-guest-agent",  # the channel on which results leave
    "apt", "man-db",  # packages are installed and manuals read there
    "rpm",  # our RPM packages' own scripts, too
    "autopkgtest", "dpkg-dev",  # run the tests of packaging/debian/tests
)  # fmt: skip
NETWORK = """[Match]
MACAddress={mac}

[Network]
Address={address}
LinkLocalAddressing=no
IPv6AcceptRA=no
LLDP=no
"""
# MAC and guest address of each NIC of the lab; lab.net gives the host the .1 of each net.
NICS = {
    "virtio": ("52:54:00:77:00:02", "10.77.0.2/24"),
    "e1000e": ("52:54:00:77:01:02", "10.77.1.2/24"),
    "vmxnet3": ("52:54:00:77:02:02", "10.77.2.2/24"),
    "igb": ("52:54:00:77:03:02", "10.77.3.2/24"),
    "e1000": ("52:54:00:77:04:02", "10.77.4.2/24"),
}
# Never ready in a guest without the outside, or work that only takes the test's time.
MASKED = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "man-db.timer",
    "e2scrub_all.timer", "fstrim.timer", "systemd-networkd-wait-online.service",
    "systemd-tmpfiles-clean.timer",
)  # fmt: skip


def customise(root: Path) -> None:
    """What a lab guest has beyond its packages: addresses, the share's mount point, no pager."""
    network = root / "etc/systemd/network"
    network.mkdir(parents=True, exist_ok=True)
    for name, (mac, address) in NICS.items():
        text = NETWORK.format(mac=mac, address=address)
        (network / f"10-lab-{name}.network").write_text(text)
    (root / "etc/hostname").write_text("guest\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost guest\n")
    (root / "etc/fstab").write_text(
        "/dev/vda / ext4 defaults 0 0\n"
        "LABEL=rxshare /mnt/share ext4 ro,nofail,x-systemd.device-timeout=20s 0 0\n"
    )
    (root / "mnt/share").mkdir(parents=True, exist_ok=True)
    # TuneD comes up without a profile, so that "before" is the kernel's own state.
    (root / "etc/tuned").mkdir(exist_ok=True)
    (root / "etc/tuned/active_profile").write_text("\n")
    (root / "etc/tuned/profile_mode").write_text("manual\n")
    for unit in MASKED:
        link = root / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    unit_file = wants / "systemd-networkd.service"
    unit_file.unlink(missing_ok=True)
    unit_file.symlink_to("/usr/lib/systemd/system/systemd-networkd.service")


def mark_updated(root: Path) -> None:
    """Tells systemd that caches (ld.so, hwdb, catalog) are those of this /usr: dpkg made them.

    Without the stamps every boot of a guest makes them anew: systemd-update-done.service(8).
    """
    for folder in ("etc", "var"):
        (root / folder / ".updated").write_text("")


# What a kernel of Debian's needs to find its disk: an initrd of all drivers takes an emulated guest
# half a minute to unpack. The directories are those of initramfs-tools, which comes later.
SMALL_INITRD = (
    'mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"',
    'echo MODULES=list > "$1/etc/initramfs-tools/conf.d/lab"',
    r'printf "virtio_pci\nvirtio_blk\next4\n" > "$1/usr/share/initramfs-tools/modules.d/lab.conf"',
)


def bootstrap(root: Path, suite: str, extra: tuple[str, ...]) -> None:
    packages = ",".join([*PACKAGES, *extra])
    tool(
        ["mmdebstrap", "--mode=root", "--variant=minbase", "--quiet",
         f"--include={packages}",
         "--aptopt=APT::Install-Recommends \"false\"",
         "--dpkgopt=path-exclude=/usr/share/locale/*",
         "--dpkgopt=path-exclude=/usr/share/doc/*/examples/*",
         *(f"--essential-hook={hook}" for hook in SMALL_INITRD),
         suite, root, *source_lines(suite)],
    )  # fmt: skip


def source_lines(suite: str) -> list[str]:
    found = apt.mirrors()
    signed = f"[signed-by={apt.KEYRING}]"
    suites = (suite, f"{suite}-updates", f"{suite}-backports")
    lines = [f"deb {signed} {found['Debian']} {name} main non-free" for name in suites]
    if "Debian-Security" in found:
        lines.append(f"deb {signed} {found['Debian-Security']} {suite}-security main")
    return lines


def make_image(root: Path, image: Path) -> None:
    tool(["mke2fs", "-q", "-F", "-t", "ext4", "-L", "rxroot", "-d", root, image, IMAGE_SIZE])


def make_root(out: Path, suite: str, extra: tuple[str, ...], label: str) -> None:
    root = out / "root"
    with step(f"making the root of {suite} {label}"):
        try:
            bootstrap(root, suite, extra)
            customise(root)
            for name in ("vmlinuz", "initrd"):
                for found in (root / "boot").glob(f"{name}*-*"):
                    shutil.copy(found, out / name)
            mark_updated(root)
            make_image(root, out / "root.ext4")
        finally:
            shutil.rmtree(root, ignore_errors=True)


def key_of(suite: str, extra: tuple[str, ...]) -> str:
    """Changes when the package list, this file or the TuneD that is offered changes."""
    return digest([Path(__file__).read_bytes(), suite, *PACKAGES, *extra, tuned_version(suite)])


def tuned_version(suite: str) -> str:
    return next(v for v, of in apt.offered("tuned") if of == suite)


def root_image(suite: str = SUITE) -> Path:
    """The ext4 image for kernels of our own (drivers built in, so it holds no modules)."""
    make = partial(make_root, suite=suite, extra=(), label="")
    return built("roots", key_of(suite, ()), make) / "root.ext4"


def from_backports(version: str) -> tuple[str, ...]:
    """What a kernel of the backports pre-depends on there; apt takes it only when told to."""
    return (f"linux-base/{SUITE}-backports",) if "~bpo" in version else ()


def debian_root(package: str, version: str) -> Path:
    """Folder with root.ext4, vmlinuz and initrd of Debian's own kernel package."""
    extra = (package, "initramfs-tools", "zstd", *from_backports(version))
    make = partial(make_root, suite=SUITE, extra=extra, label=f"with {package}")
    return built("roots", key_of(SUITE, (*extra, version)), make)


def share_image(paths: list[Path], folder: Path) -> Path:
    """A read-only ext4 disk labelled rxshare that holds the given files and folders by name."""
    content = folder / "share"
    content.mkdir()
    for path in paths:
        if path.is_dir():
            shutil.copytree(path, content / path.name)
        else:
            shutil.copy(path, content / path.name)
    image = folder / "share.ext4"
    tool(["mke2fs", "-q", "-F", "-t", "ext4", "-L", "rxshare", "-d", content, image, "64M"])
    return image
