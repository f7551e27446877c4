# SPDX-License-Identifier: GPL-2.0-or-later
"""``ethtool`` 6.1 as apt serves its source, with our patch; kept in the cache by hash.

FLAVOURS are the ways it is built; each that is kept passed ethtool's own ``make check``, but for
"asan", with which it would compile all a second time and does not reach our code.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from lab import source
from lab.cache import built, digest
from lab.paths import TREE, cache
from lab.progress import step, tool

PATCHES = TREE / "ethtool-patches"
PATCH = PATCHES / "0001-ethtool-show-and-set-NAPI-instances.patch"
FUZZER = PATCHES / "tests" / "fuzz-napi.c"
RAW_DUMP = PATCHES / "tests" / "raw-dump.c"
VERSION, SUITE = "6.1", "bookworm"
SANITIZE = ("-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g", "-O1")
WARN = ("-Wall", "-Wextra", "-Werror")


@dataclass(frozen=True)
class Flavour:
    """Compiler, its words, those of configure, and what our file needs not to warn."""

    compiler: str
    cflags: tuple[str, ...] = ("-O2",)
    configure: tuple[str, ...] = ()
    quiet: tuple[str, ...] = ()


# ethtool's own internal.h has what clang calls a GNU extension, and a shift that UBSan reports.
FLAVOURS = {
    "gcc": Flavour("gcc"),
    "clang": Flavour("clang", quiet=("-Wno-gnu-variable-sized-type-not-at-end",)),
    "asan": Flavour("gcc", (*SANITIZE, "-fno-sanitize=shift", "-fno-sanitize-recover=undefined")),
    "no-netlink": Flavour("gcc", configure=("--disable-netlink",)),
}


def tarball() -> Path:
    return source.tarball("ethtool", VERSION, SUITE)


def compile_fuzzer(tree: Path, target: Path) -> None:
    sources = [tree / "json_print.c", tree / "json_writer.c", tree / "netlink" / "msgbuff.c"]
    tool(
        ["gcc", *SANITIZE, "-D_GNU_SOURCE", "-DETHTOOL_ENABLE_NETLINK", *WARN, f"-I{tree}",
         f"-I{tree}/uapi", f"-I{tree}/netlink", FUZZER, *sources, "-lmnl", "-o", target]
    )  # fmt: skip


def make(tree: Path, *words: str) -> None:
    env = {**os.environ, "CCACHE_DIR": str(cache("ccache")), "CCACHE_NOHASHDIR": "1",
           "ASAN_OPTIONS": "detect_leaks=0"}  # fmt: skip
    tool(["make", f"-j{os.cpu_count() or 1}", *words], cwd=tree, env=env, log=tree / "make.log")


def build(folder: Path, name: str) -> None:
    flavour = FLAVOURS[name]
    tree = source.unpack(tarball(), folder, PATCH)
    cflags = " ".join(flavour.cflags)
    with step(f"building {tree.name} with {PATCH.name} ({name})"):
        tool(["autoreconf", "-fi"], cwd=tree, log=tree / "autoreconf.log")
        tool(
            ["./configure", "-q", *flavour.configure, f"CC=ccache {flavour.compiler}",
             f"CFLAGS={cflags}"], cwd=tree,
        )  # fmt: skip
        make(tree, "ethtool")
        if name != "asan":
            make(tree, "check")
        if "--disable-netlink" not in flavour.configure:
            # The file that the patch adds has no warning; others' warnings are not ours.
            (tree / "netlink" / "napi.c").touch()
            make(tree, "ethtool", f"CFLAGS={' '.join((cflags, *WARN, *flavour.quiet))}")
        if name == "asan":
            compile_fuzzer(tree, folder / "fuzz-napi")
    shutil.copy(tree / "ethtool", folder / "ethtool")
    shutil.rmtree(tree)


def ethtool(name: str = "gcc") -> Path:
    """The patched binary of a flavour."""
    flavour = FLAVOURS[name]
    # With how it is built: what warns is refused there, and its own tests are run.
    parts = [Path(__file__).read_text(), tarball().name, PATCH.read_text(), repr(flavour)]
    parts += [tool([flavour.compiler, "--version"])]
    parts += [FUZZER.read_text()] if name == "asan" else []
    return built("ethtool", digest(parts), lambda folder: build(folder, name)) / "ethtool"


def fuzzer() -> Path:
    return ethtool("asan").with_name("fuzz-napi")


def raw_dump() -> Path:
    """The program that does the same dumps as ``--show-napi '*'`` and nothing else."""

    def compile_it(folder: Path) -> None:
        tool(["gcc", "-O2", *WARN, RAW_DUMP, "-o", folder / "raw-dump"])

    return built("ethtool", digest(["raw-dump", RAW_DUMP.read_text()]), compile_it) / "raw-dump"


def completion() -> Path:
    """The bash completion with what the patch adds to it."""

    def copy(folder: Path) -> None:
        tree = source.unpack(tarball(), folder, PATCH)
        shutil.copy(tree / "shell-completion" / "bash" / "ethtool", folder / "completion")
        shutil.rmtree(tree)

    key = digest(["completion", tarball().name, PATCH.read_text()])
    return built("ethtool", key, copy) / "completion"
