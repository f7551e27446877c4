# SPDX-License-Identifier: GPL-2.0-or-later
"""``ip`` of iproute2 as apt serves its source, without and with our patch.

Kept in the cache by the hash of source, patch, harness and compiler. The source is fetched by
the lab's private apt state, with package lists of its own, because that state reads no sources.
"""

import os
import shutil
from functools import lru_cache
from pathlib import Path

from lab import apt
from lab.cache import built, digest
from lab.paths import TREE, cache
from lab.progress import StepFailed, say, step, tool

PATCHES = TREE / "iproute2-patches"
PATCH = PATCHES / "0001-ip-link-set-and-show-threaded-NAPI.patch"
FUZZER = PATCHES / "tests" / "fuzz-napi.c"
PRELOAD = PATCHES / "tests" / "netdev-log.c"

# The versions whose source apt serves, and the release that has it.
SUITES = {"6.1.0": "bookworm", "7.2.0": "forky"}
SANITIZE = ("-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g")
COMPILERS = {
    "stock": ("gcc",),
    "gcc": ("gcc",),
    "clang": ("clang",),
    "asan": ("gcc", *SANITIZE),
}


class NoSource(Exception):
    """apt does not serve the source of this release."""


@lru_cache
def source_options() -> tuple[str, ...]:
    """Options of apt with which it knows the sources of SUITES, with lists of their own."""
    home = cache("apt", "sources")
    (home / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    mirror = apt.mirrors()["Debian"]
    wanted = "".join(
        f"deb-src [signed-by={apt.KEYRING}] {mirror} {suite} main\n"
        for suite in dict.fromkeys(SUITES.values())
    )
    listed = home / "sources.list"
    options = (
        "-o", f"Dir::Etc::sourcelist={listed}",
        "-o", "Dir::Etc::sourceparts=/dev/null",
        "-o", f"Dir::State::lists={home}/lists",
        "-o", f"Dir::Cache={home}",
    )  # fmt: skip
    if not listed.exists() or listed.read_text() != wanted:
        listed.write_text(wanted)
        with step("reading the source lists of Debian's releases"):
            tool(["apt-get", *options, "-q", "update"], env=apt.state())
    return options


def served(suite: str) -> str:
    """The newest upstream version of iproute2's source in a release."""
    shown = tool(
        ["apt-get", *source_options(), "-qq", "--print-uris", "--only-source", "-t", suite,
         "--tar-only", "source", "iproute2"],
        env=apt.state(),
    )  # fmt: skip
    for word in shown.split():
        if word.startswith("iproute2_") and ".orig.tar." in word:
            return word.removeprefix("iproute2_").split(".orig.tar.")[0]
    raise NoSource(f"apt offers no source of iproute2 in {suite}")


@lru_cache
def tarball(version: str) -> Path:
    """The upstream tarball of ``version``, or of what its release has moved to, and says so."""
    home = cache("sources")
    for known in home.glob(f"iproute2_{version}.orig.tar.*"):
        return known
    suite = SUITES[version]
    there = served(suite)
    if there != version:
        say(f"iproute2 {version} is no longer in {suite}; falling forward to {there}")
    with step(f"downloading the source of iproute2 {there}"):
        tool(
            ["apt-get", *source_options(), "-q", "--only-source", "-t", suite, "--tar-only",
             "--download-only", "source", "iproute2"],
            env=apt.state(), cwd=home,
        )  # fmt: skip
    for known in home.glob(f"iproute2_{there}.orig.tar.*"):
        return known
    raise NoSource(f"apt downloaded no tarball of iproute2 {there}")


def unpack(version: str, folder: Path, patched: bool) -> Path:
    """The source below ``folder``; the patch must apply without fuzz."""
    tool(["tar", "-xf", tarball(version), "-C", folder])
    tree = next(path for path in folder.iterdir() if path.name.startswith("iproute2-"))
    if patched:
        shown = tool(["patch", "-p1", "--fuzz=0", "--no-backup-if-mismatch", "-i", PATCH], cwd=tree)
        if "fuzz" in shown:
            raise StepFailed(f"{PATCH.name} applies to {tree.name} with fuzz only:\n{shown}")
    return tree


def make(tree: Path, compiler: tuple[str, ...], *words: str) -> None:
    log = tree / "make.log"
    jobs = f"-j{os.cpu_count() or 1}"
    env = {**os.environ, "CCACHE_DIR": str(cache("ccache")), "CCACHE_NOHASHDIR": "1"}
    tool(["make", jobs, f"CC=ccache {' '.join(compiler)}", *words], cwd=tree, env=env, log=log)


def compile_fuzzer(tree: Path, compiler: tuple[str, ...], target: Path) -> None:
    argv: list[str | Path] = [
        *compiler, "-O1", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wno-unused-parameter",
        f"-I{tree}/ip", f"-I{tree}/include", f"-I{tree}/include/uapi",
        FUZZER, f"{tree}/lib/libutil.a", f"{tree}/lib/libnetlink.a", f"{tree}/lib/libutil.a",
        "-o", target, *link_flags(tree),
    ]  # fmt: skip
    tool(argv)


def link_flags(tree: Path) -> list[str]:
    """-l words of the tree's own configuration."""
    words = [
        word
        for line in (tree / "config.mk").read_text().splitlines()
        if line.startswith("LDLIBS +=")
        for word in line.split()
        if word.startswith("-l")
    ]
    return [*words, "-lm"]


def make_words(flavour: str) -> tuple[str, str]:
    # With -O2 the sanitizers' build takes twice as long.
    return "SUBDIRS=lib ip", f"CCOPTS={'-O1' if flavour == 'asan' else '-O2'} -pipe"


def build(folder: Path, version: str, flavour: str) -> None:
    compiler = COMPILERS[flavour]
    tree = unpack(version, folder, patched=flavour != "stock")
    words = make_words(flavour)
    with step(f"building ip of {tree.name} ({flavour})"):
        make(tree, compiler, *words)
        if flavour != "stock":
            # The file that the patch adds has no warning; others' warnings are not ours.
            (tree / "ip" / "ipnapi.c").touch()
            make(tree, compiler, *words, "EXTRA_CFLAGS=-Wextra -Werror")
        if flavour == "asan":
            compile_fuzzer(tree, compiler, folder / "fuzz-napi")
    shutil.copy(tree / "ip" / "ip", folder / "ip")
    shutil.rmtree(tree)


def ip(version: str, flavour: str) -> Path:
    """The ``ip`` of a version: stock, or patched and built by gcc, by clang or with sanitizers."""
    compiler = COMPILERS[flavour]
    parts = [
        tarball(version).name,
        *make_words(flavour),
        *compiler,
        tool([compiler[0], "--version"]),
    ]
    parts += ["stock"] if flavour == "stock" else [PATCH.read_text()]
    parts += [FUZZER.read_text()] if flavour == "asan" else []
    return built("iproute2", digest(parts), lambda folder: build(folder, version, flavour)) / "ip"


def testsuite(version: str, patched: bool = True) -> Path:
    """iproute2's own test suite: its folders lib and tests."""

    def copy(folder: Path) -> None:
        tree = unpack(version, folder, patched)
        for part in ("lib", "tests"):
            shutil.copytree(tree / "testsuite" / part, folder / part)
        shutil.rmtree(tree)

    parts = ["testsuite", tarball(version).name, PATCH.read_text() if patched else ""]
    return built("iproute2", digest(parts), copy)


def fuzzer() -> Path:
    return ip("6.1.0", "asan").with_name("fuzz-napi")


def preload() -> Path:
    """The library that logs ip's requests to the netdev family and lets one of them fail."""
    source = PRELOAD.read_text()

    def compile_it(folder: Path) -> None:
        tool(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", PRELOAD,
              "-o", folder / "netdev-log.so"])  # fmt: skip

    return built("iproute2", digest(["preload", source]), compile_it) / "netdev-log.so"
