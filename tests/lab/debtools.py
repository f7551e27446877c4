# SPDX-License-Identifier: GPL-2.0-or-later
"""Debian 13 packages of ethtool and iproute2 with our patches, built in a Debian 13 of their own.

Each is Debian's source package with our patch as the last of its quilt series, which dpkg-source
applies without fuzz, built by dpkg-buildpackage. Taken is the release's own source package where
apt serves it whole, else that of an older release; the version is above the release's either way.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from email.utils import format_datetime, parsedate_to_datetime
from functools import lru_cache, partial
from pathlib import Path

from lab import apt, source
from lab.cache import built, digest
from lab.cleanroot import ENVIRONMENT, entered
from lab.paths import TREE, cache
from lab.progress import StepFailed, step, tool
from lab.rootfs import SUITE

# The source package, and with it the binary package of the same name, by our patch.
PATCHES = {
    "ethtool": TREE / "ethtool-patches" / "0001-ethtool-show-and-set-NAPI-instances.patch",
    "iproute2": TREE / "iproute2-patches" / "0001-ip-link-set-and-show-threaded-NAPI.patch",
}
# Releases whose source package is taken, the first that apt serves whole.
SUITES = (SUITE, "bookworm")
SUFFIX = "+rxlane1"
MAINTAINER = "rxlane maintainers <maintainers@rxlane.example>"
BUILD = "build"  # folder of the chroot that builds happen in
BUILD_ENVIRONMENT = {
    **ENVIRONMENT,
    "HOME": f"/{BUILD}",
    "DEB_BUILD_OPTIONS": f"noautodbgsym parallel={os.cpu_count() or 1}",
}


def newer(one: str, other: str) -> bool:
    argv = ["dpkg", "--compare-versions", one, "gt", other]
    return subprocess.run(argv, check=False).returncode == 0


def split(version: str) -> tuple[str, str, str]:
    """Epoch with its colon (or ""), upstream version, and Debian revision of a version."""
    epoch, colon, rest = version.rpartition(":")
    upstream, _, revision = rest.rpartition("-")
    return epoch + colon, upstream, revision


def own_version(of_source: str, released: str) -> str:
    """The version of our package, above ``released``, that of the release it is for.

    An older source is named with ``+really``, as Debian names one that goes back.
    """
    if newer(of_source + SUFFIX, released):
        return of_source + SUFFIX
    epoch, upstream, revision = split(of_source)
    _, theirs, _ = split(released)
    return f"{epoch}{theirs}+really{upstream}-{revision}{SUFFIX}"


def field(dsc: Path, name: str) -> str:
    """A field of a .dsc, its continuation lines joined."""
    found = re.search(rf"^{name}:((?:.*\n)(?: .*\n)*)", dsc.read_text(), re.MULTILINE)
    if found is None:
        raise StepFailed(f"{dsc.name} has no field {name}")
    return " ".join(found[1].split())


def released(package: str) -> str:
    """The newest version of the binary package in the release the packages are for."""
    versions = [version for version, suite in apt.offered(package) if suite == SUITE]
    if not versions:
        raise apt.NoPackage(f"{SUITE} offers no {package}")
    return versions[0]


def entry(package: str, version: str, patch: Path) -> str:
    """The head of debian/changelog, dated as the patch is, so that two builds are equal."""
    header = re.search(r"^Date: (.*)$", patch.read_text(), re.MULTILINE)
    if header is None:
        raise StepFailed(f"{patch.name} has no Date")
    date = format_datetime(parsedate_to_datetime(header[1]))
    return (
        f"{package} ({version}) {SUITE}; urgency=medium\n\n  * With {patch.name} of rxlane.\n\n"
        f" -- {MAINTAINER}  {date}\n\n"
    )


def lay_out(dsc: Path, tree: Path, version: str) -> None:
    """The source package unpacked with our patch in its series and our version on its top."""
    package = field(dsc, "Source")
    patch = PATCHES[package]
    tool(["dpkg-source", "--no-check", "--no-copy", "-x", dsc, tree])
    patches = tree / "debian" / "patches"
    patches.mkdir(exist_ok=True)
    shutil.copy(patch, patches / patch.name)
    series = patches / "series"
    listed = series.read_text() if series.exists() else ""
    series.write_text(f"{listed}{patch.name}\n")
    changelog = tree / "debian" / "changelog"
    changelog.write_text(entry(package, version, patch) + changelog.read_text())


def make_chroot(folder: Path, sources: Sequence[Path]) -> None:
    """A minimal Debian 13 with what the source packages need to be built, at ``folder/root``."""
    names = " ".join(f"/{BUILD}/{dsc.name}" for dsc in sources)
    copied = " ".join(str(dsc) for dsc in sources)
    mirror = apt.mirrors()["Debian"]
    with step(f"making a Debian 13 to build {', '.join(PATCHES)} in"):
        tool(
            ["mmdebstrap", "--mode=root", "--variant=buildd", "--quiet",
             f'--customize-hook=mkdir "$1/{BUILD}"',
             f"--customize-hook=copy-in {copied} /{BUILD}",
             f'--customize-hook=chroot "$1" apt-get -y --no-install-recommends build-dep {names}',
             SUITE, folder / "root", f"deb [signed-by={apt.KEYRING}] {mirror} {SUITE} main"]
        )  # fmt: skip


def chroot(sources: Sequence[Path]) -> Path:
    needed = [field(dsc, "Build-Depends") for dsc in sources]
    key = digest([SUITE, apt.mirrors()["Debian"], *needed])
    return built("buildroots", key, lambda folder: make_chroot(folder, sources)) / "root"


def build_one(root: Path, dsc: Path, version: str, folder: Path) -> None:
    """The packages of one source into ``folder``, built without a network."""
    home = Path(tempfile.mkdtemp(prefix="deb-", dir=root / BUILD))
    log = cache("debtools") / f"{field(dsc, 'Source')}.log"
    log.unlink(missing_ok=True)
    try:
        lay_out(dsc, home / "tree", version)
        with step(f"building {field(dsc, 'Source')} {version} for Debian 13"):
            argv = ["dpkg-buildpackage", "-us", "-uc", "-B"]
            words = entered(root, f"/{BUILD}/{home.name}/tree", argv, net=False)
            tool(words, env=BUILD_ENVIRONMENT, log=log)
        for deb in home.glob("*.deb"):
            shutil.move(deb, folder / deb.name)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def build(folder: Path, sources: Sequence[Path], dsc: Path, version: str) -> None:
    if os.geteuid() != 0:
        raise StepFailed("a Debian 13 to build packages in is made and entered by root only")
    build_one(chroot(sources), dsc, version, folder)


@lru_cache
def packages() -> list[Path]:
    """The .deb files: from the cache, or built now."""
    sources = {name: source.dsc(name, SUITES) for name in PATCHES}
    debs: list[Path] = []
    for name, dsc in sources.items():
        version = own_version(field(dsc, "Version"), released(name))
        code, patch = Path(__file__).read_bytes(), PATCHES[name].read_bytes()
        parts = (code, patch, dsc.read_bytes(), version.encode())
        make = partial(build, sources=list(sources.values()), dsc=dsc, version=version)
        debs += sorted(built("debtools", digest(parts), make).glob("*.deb"))
    return debs
