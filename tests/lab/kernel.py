# SPDX-License-Identifier: GPL-2.0-or-later
"""Kernels to boot: built from Debian's source with our series, or Debian's own, prebuilt.

Builds are kept by the hash of source version, patches, configuration and compiler.
"""

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from lab import apt
from lab.base import Base, apply_series, read_base, unpacked
from lab.cache import built, digest
from lab.paths import KCONFIG, cache
from lab.progress import StepFailed, say, step, tool

# flavour -> the fragments merged over `make allnoconfig`, later ones winning.
FLAVOURS: dict[str, tuple[str, ...]] = {
    "fast": ("fast",),  # PREEMPT_DYNAMIC
    "debug": ("fast", "debug"),
    "none": ("fast", "none"),
    "preempt": ("fast", "preempt"),
    "lazy": ("fast", "lazy"),
    "rt": ("fast", "rt"),
    "rt-debug": ("fast", "debug", "rt"),
    "nohz": ("fast", "nohz"),
    "vlan": ("fast", "vlan"),
    "cost": ("fast", "cost"),  # static keys as distributions have them
    "series": ("fast", "drivers", "series"),  # all that a series touches
    "series-none": ("fast", "drivers", "series", "none"),
    "series-preempt": ("fast", "drivers", "series", "preempt"),
    "series-lazy": ("fast", "drivers", "series", "lazy"),
    "series-rt": ("fast", "drivers", "rt"),
}
# Which preemption models a base knows: 7.2 has neither none nor voluntary on x86.
BASE_FLAVOURS = {
    "6.12": (
        "fast", "debug", "none", "preempt", "rt", "rt-debug", "nohz", "vlan", "cost",
        "series", "series-none", "series-rt", "series-preempt",
    ),
    "7.2": (
        "fast", "debug", "preempt", "lazy", "rt", "rt-debug", "nohz", "vlan",
        "cost", "series", "series-preempt", "series-lazy", "series-rt",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class KernelImage:
    """What QEMU boots. ``initrd`` and the root's package come with Debian's own kernels only."""

    bzimage: Path
    release: str
    base: str
    flavour: str
    patched: bool
    initrd: Path | None = None
    root_package: str | None = None

    def module(self, name: str) -> Path:
        """One of the flavour's few modules: insmod takes it, the guest's root does not know it."""
        return self.bzimage.parent / f"{name}.ko"

    @property
    def name(self) -> str:
        return f"{self.release} ({self.flavour}, {'patched' if self.patched else 'stock'})"


def fragments(base: str, flavour: str, patched: bool) -> list[Path]:
    """The flavour's, those of it for this base alone, and what our series add to Kconfig."""
    if flavour not in BASE_FLAVOURS[base]:
        known = ", ".join(BASE_FLAVOURS[base])
        raise ValueError(f"base {base} has no flavour {flavour!r}: there are {known}")
    parts = [part for name in FLAVOURS[flavour] for part in _parts(name, base)]
    return [*parts, KCONFIG / "ours"] if patched else parts


def _parts(name: str, base: str) -> list[Path]:
    only = KCONFIG / f"{name}-{base}"
    return [KCONFIG / name, *([only] if only.exists() else [])]


def wanted_options(text: str) -> dict[str, str]:
    """{"CONFIG_X": "y", "CONFIG_Z": "n"} of a fragment; its comments are left out."""
    options = {}
    for line in text.splitlines():
        if line.startswith("# CONFIG_") and line.endswith(" is not set"):
            options[line.split()[1]] = "n"
        elif line.startswith("CONFIG_"):
            name, value = line.split("=", 1)
            options[name] = value.strip()
    return options


def wanted_of(base: str, flavour: str, patched: bool) -> dict[str, str]:
    """All options of a flavour, those of later fragments winning."""
    wanted: dict[str, str] = {}
    for part in fragments(base, flavour, patched):
        wanted.update(wanted_options(part.read_text()))
    return wanted


def not_held(wanted: dict[str, str], config: str) -> list[str]:
    """The options that olddefconfig did not take over as asked."""
    held = wanted_options(config)
    return [f"{name}={value}" for name, value in wanted.items() if held.get(name, "n") != value]


def code_of(patch: bytes) -> bytes:
    """The patch from its first diff on: words of its message change no image."""
    return patch[max(patch.find(b"\ndiff --git "), 0) :]


def compiler() -> list[str]:
    """make's words for the compiler, through ccache where there is one."""
    return ["CC=ccache gcc"] if shutil.which("ccache") else []


# What kbuild would take from a caller's environment into the image.
CALLERS = ("ARCH", "CROSS_COMPILE", "KAFLAGS", "KCFLAGS", "KCPPFLAGS", "LLVM", "LLVM_IAS",
           "LOCALVERSION", "MAKEFLAGS")  # fmt: skip


def build_environment() -> dict[str, str]:
    """Nothing of the machine in the image: same user, host and time for every build."""
    return {
        **{name: value for name, value in os.environ.items() if name not in CALLERS},
        "KBUILD_BUILD_USER": "rxlane",
        "KBUILD_BUILD_HOST": "lab",
        "KBUILD_BUILD_TIMESTAMP": "2026-01-01",
        "CCACHE_DIR": str(cache("ccache")),
        "LC_ALL": "C",
    }


def configure(tree: Path, base: str, flavour: str, patched: bool) -> None:
    """.config of the flavour; StepFailed when an option asked for is not in the outcome."""
    wanted = wanted_of(base, flavour, patched)
    asked = tree / "lab.config"
    asked.write_text("".join(f"{name}={value}\n" for name, value in wanted.items()))
    env = {**build_environment(), "KCONFIG_ALLCONFIG": str(asked)}
    tool(["make", "-s", *compiler(), "allnoconfig"], cwd=tree, env=env)
    lost = not_held(wanted, (tree / ".config").read_text())
    if lost:
        raise StepFailed(f"{base} {flavour}: the kernel's Kconfig did not take {' '.join(lost)}")


@dataclass(frozen=True)
class Edit:
    """A deliberate fault, put in after the series: ``old``, which stands once in the file."""

    file: str
    old: str
    new: str

    def outcome(self, tree: Path) -> str:
        """What it makes of the file; StepFailed where that does not hold ``old`` just once."""
        text = (tree / self.file).read_text()
        if text.count(self.old) != 1:
            raise StepFailed(f"{self.file} holds {text.count(self.old)} times: {self.old!r}")
        return text.replace(self.old, self.new)

    def apply(self, tree: Path) -> None:
        (tree / self.file).write_text(self.outcome(tree))


def targets(tree: Path) -> list[str]:
    """What make is to build of a configured tree."""
    options = wanted_options((tree / ".config").read_text())
    return ["bzImage", *(["modules"] if options.get("CONFIG_MODULES") == "y" else [])]


def compile_kernel(
    base: Base, version: str, flavour: str, patched: bool, edits: tuple[Edit, ...], out: Path
) -> None:
    log = out / "build.log"
    label = f"{base.name} {version} {flavour} {'patched' if patched else 'stock'}"
    with unpacked(base, version, flavour) as tree:
        if patched:
            apply_series(base, tree)
        for edit in edits:
            edit.apply(tree)
        configure(tree, base.name, flavour, patched)
        jobs = f"-j{os.cpu_count() or 2}"
        # What ccache does not know yet it compiles as it came out of the preprocessor, not anew:
        # that may warn of more, which nobody reads here, and saves a first build a quarter.
        env = {**build_environment(), "CCACHE_NOCPP2": "1"}
        with step(f"building kernel {label} ({jobs}; the first build takes minutes)"):
            tool(["make", jobs, *compiler(), *targets(tree)], cwd=tree, env=env, log=log)
        for made in (tree / "arch/x86/boot/bzImage", *tree.rglob("*.ko")):
            shutil.copy(made, out)
        shutil.copy(tree / ".config", out / "config")
        release = (tree / "include/config/kernel.release").read_text()
        (out / "release").write_text(release)


def build(
    base: str = "6.12", flavour: str = "fast", patched: bool = True, edits: tuple[Edit, ...] = ()
) -> KernelImage:
    """The kernel image, from the cache or built now; with faults of a test's, ``edits``.

    Raises StepFailed with the tail of the tool's output when a patch does not apply, an
    option does not hold or the build fails.
    """
    known = read_base(base)
    version = apt.choose(known.package, known.version)
    patches = [code_of(patch.read_bytes()) for patch in known.patches] if patched else []
    config = json.dumps(wanted_of(base, flavour, patched), sort_keys=True)
    faults = [repr(edit) for edit in edits]
    key = digest([known.package, version, *patches, *faults, config, tool(["gcc", "--version"])])
    found = built(
        "kernels", key, lambda out: compile_kernel(known, version, flavour, patched, edits, out)
    )
    release = (found / "release").read_text().strip()
    return KernelImage(found / "bzImage", release, base, flavour, patched)


def prebuilt_package(base: str) -> tuple[str, str]:
    """(package, version) of Debian's newest amd64 image of this series, for Debian 13."""
    pattern = rf"^linux-image-{base.replace('.', '[.]')}[.][0-9]+[+]deb13-amd64$"
    names = tool(
        ["apt-cache", *apt.CACHED, "pkgnames", f"linux-image-{base}."], env=apt.state()
    ).split()
    known = [name for name in names if re.match(pattern, name)]
    if not known:
        raise apt.NoPackage(f"no release that apt reaches offers a linux-image of {base} for amd64")
    package = max(known, key=lambda name: [int(n) for n in re.findall(r"\d+", name)])
    return package, apt.offered(package)[0][0]


def debian_prebuilt(base: str) -> KernelImage:
    """Debian's own kernel: installed into a root of its own, its modules and initrd with it."""
    from lab.rootfs import debian_root

    package, version = prebuilt_package(base)
    say(f"Debian's own kernel: {package} {version}")
    folder = debian_root(package, version)
    release = package.removeprefix("linux-image-")
    return KernelImage(
        folder / "vmlinuz", release, base, "debian", False, folder / "initrd", package
    )
