# SPDX-License-Identifier: GPL-2.0-or-later
"""``ip`` of iproute2 as apt serves its source, without and with our patch.

Kept in the cache by the hash of source, patch, harness and compiler.
"""

import os
import shutil
from pathlib import Path

from lab import source
from lab.cache import built, digest
from lab.paths import TREE, cache
from lab.progress import step, tool

PATCHES = TREE / "iproute2-patches"
PATCH = PATCHES / "0001-ip-link-set-and-show-threaded-NAPI.patch"
FUZZER = PATCHES / "tests" / "fuzz-napi.c"

# The versions whose source apt serves, and the release that has it.
SUITES = {"6.1.0": "bookworm", "7.2.0": "forky"}
SANITIZE = ("-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g")
COMPILERS = {
    "stock": ("gcc",),
    "gcc": ("gcc",),
    "clang": ("clang",),
    "asan": ("gcc", *SANITIZE),
}


def tarball(version: str) -> Path:
    return source.tarball("iproute2", version, SUITES[version])


def unpack(version: str, folder: Path, patched: bool) -> Path:
    return source.unpack(tarball(version), folder, PATCH if patched else None)


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
        Path(__file__).read_text(),
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
