# SPDX-License-Identifier: GPL-2.0-or-later
"""Sources that apt serves: upstream tarballs and whole Debian source packages, and our patches.

Fetched by the lab's private apt state, with package lists of its own, because that state reads no
sources. Not all that those lists name is there to be downloaded.
"""

from functools import lru_cache
from pathlib import Path

from lab import apt
from lab.cache import fetched
from lab.paths import cache
from lab.progress import StepFailed, say, step, tool

# The releases that the sources below are taken from.
SUITES = ("trixie", "bookworm", "forky")


class NoSource(Exception):
    """apt does not serve the source of this release."""


@lru_cache
def source_options() -> tuple[str, ...]:
    """Options of apt with which it knows the sources of SUITES, with lists of their own."""
    home = cache("apt", "sources")
    (home / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    mirror = apt.mirrors()["Debian"]
    wanted = "".join(
        f"deb-src [signed-by={apt.KEYRING}] {mirror} {suite} main\n" for suite in SUITES
    )
    listed = home / "sources.list"
    options = (
        "-o", f"Dir::Etc::sourcelist={listed}",
        "-o", "Dir::Etc::sourceparts=/dev/null",
        "-o", f"Dir::State::lists={home}/lists",
        "-o", f"Dir::Cache={home}",
    )  # fmt: skip
    apt.read_lists(home, listed, wanted, apt.state(), options)
    return options


def served(package: str, suite: str) -> str:
    """The newest upstream version of a package's source in a release."""
    shown = tool(
        ["apt-get", *source_options(), "-qq", "--print-uris", "--only-source", "-t", suite,
         "--tar-only", "source", package],
        env=apt.state(),
    )  # fmt: skip
    for word in shown.split():
        if word.startswith(f"{package}_") and ".orig.tar." in word:
            return word.removeprefix(f"{package}_").split(".orig.tar.")[0]
    raise NoSource(f"apt offers no source of {package} in {suite}")


@lru_cache
def tarball(package: str, version: str, suite: str) -> Path:
    """The upstream tarball of ``version``, or of what its release has moved to, and says so."""
    home = cache("sources")
    for known in home.glob(f"{package}_{version}.orig.tar.*"):
        return known
    there = served(package, suite)
    if there != version:
        say(f"{package} {version} is no longer in {suite}; falling forward to {there}")

    def fetch(folder: Path) -> None:
        with step(f"downloading the source of {package} {there}"):
            tool(
                ["apt-get", *source_options(), "-q", "--only-source", "-t", suite, "--tar-only",
                 "--download-only", "source", package],
                env=apt.state(), cwd=folder,
            )  # fmt: skip

    found = fetched(home, f"{package}_{there}.orig.tar.*", fetch)
    if found is None:
        raise NoSource(f"apt downloaded no tarball of {package} {there}")
    return found


def download(package: str, suite: str) -> Path:
    """The .dsc of a release's source package, all of its files beside it.

    Raises NoSource where apt does not serve them all.
    """
    home = cache("sources", f"{package}-{suite}")
    shown = tool(
        ["apt-get", *source_options(), "-qq", "--print-uris", "--only-source", "-t", suite,
         "--dsc-only", "source", package],
        env=apt.state(),
    )  # fmt: skip
    name = next(word for word in shown.split() if word.endswith(".dsc"))

    def fetch(folder: Path) -> None:
        tool(
            ["apt-get", *source_options(), "-q", "--only-source", "-t", suite, "--download-only",
             "source", package],
            env=apt.state(), cwd=folder,
        )  # fmt: skip

    try:
        found = fetched(home, name, fetch)
    except StepFailed as error:
        raise NoSource(f"apt does not serve the whole source of {package} in {suite}") from error
    if found is None:
        raise NoSource(f"apt downloaded no {name}")
    return found


@lru_cache
def dsc(package: str, suites: tuple[str, ...]) -> Path:
    """The .dsc of the first of these releases whose source package apt serves whole."""
    for suite in suites:
        try:
            return download(package, suite)
        except NoSource as error:
            say(str(error))
    raise NoSource(f"apt serves the whole source of {package} in none of {', '.join(suites)}")


def unpack(source: Path, folder: Path, patch: Path | None) -> Path:
    """The source below ``folder``; the patch must apply without fuzz."""
    tool(["tar", "-xf", source, "-C", folder])
    package = source.name.partition("_")[0]
    tree = next(path for path in folder.iterdir() if path.name.startswith(f"{package}-"))
    if patch is not None:
        shown = tool(["patch", "-p1", "--fuzz=0", "--no-backup-if-mismatch", "-i", patch], cwd=tree)
        if "fuzz" in shown:
            raise StepFailed(f"{patch.name} applies to {tree.name} with fuzz only:\n{shown}")
    return tree
