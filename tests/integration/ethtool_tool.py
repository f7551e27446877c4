# SPDX-License-Identifier: GPL-2.0-or-later
"""``ethtool`` 6.1 as apt serves its source, with our patch; kept in the cache by hash."""

import os
import shutil
from pathlib import Path

from lab import source
from lab.cache import built, digest
from lab.paths import TREE, cache
from lab.progress import say, step, tool

PATCHES = TREE / "ethtool-patches"
PATCH = PATCHES / "0001-ethtool-show-and-set-NAPI-instances.patch"
FUZZER = PATCHES / "tests" / "fuzz-napi.c"
VERSION, SUITE = "6.1", "bookworm"
SANITIZE = ("-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g", "-O1")
WARN = ("-Wall", "-Wextra", "-Werror")


def tarball() -> Path:
    return source.tarball("ethtool", VERSION, SUITE)


def compile_fuzzer(tree: Path, target: Path) -> None:
    sources = [tree / "json_print.c", tree / "json_writer.c", tree / "netlink" / "msgbuff.c"]
    tool(
        ["gcc", *SANITIZE, "-D_GNU_SOURCE", "-DETHTOOL_ENABLE_NETLINK", *WARN, f"-I{tree}",
         f"-I{tree}/uapi", f"-I{tree}/netlink", FUZZER, *sources, "-lmnl", "-o", target]
    )  # fmt: skip


def build(folder: Path) -> None:
    tree = source.unpack(tarball(), folder, PATCH)
    env = {**os.environ, "CCACHE_DIR": str(cache("ccache")), "CCACHE_NOHASHDIR": "1"}
    with step(f"building {tree.name} with {PATCH.name}"):
        tool(["autoreconf", "-fi"], cwd=tree, log=tree / "autoreconf.log")
        tool(["./configure", "-q", "CC=ccache gcc"], cwd=tree, env=env)
        jobs = f"-j{os.cpu_count() or 1}"
        tool(["make", jobs, "ethtool"], cwd=tree, env=env, log=tree / "make.log")
        tool(["make", jobs, "check"], cwd=tree, env=env, log=tree / "check.log")
        for compiler in ("gcc", "clang"):
            if not shutil.which(compiler):
                say(f"{compiler} is not installed: {PATCH.name} is not compiled with it")
            else:
                # internal.h itself has what clang calls a GNU extension
                quiet = ["-Wno-gnu-variable-sized-type-not-at-end"] if compiler == "clang" else []
                tool([compiler, *WARN, *quiet, "-DHAVE_CONFIG_H", "-I.", "-Iuapi", "-O2",
                      "-D_POSIX_C_SOURCE=200809L", "-c", "netlink/napi.c", "-o", "napi.test.o"],
                     cwd=tree)  # fmt: skip
        compile_fuzzer(tree, folder / "fuzz-napi")
    shutil.copy(tree / "ethtool", folder / "ethtool")
    shutil.rmtree(tree)


def ethtool() -> Path:
    """The patched binary; its own ``make check`` passed when it was built."""
    parts = [tarball().name, PATCH.read_text(), FUZZER.read_text()]
    return built("ethtool", digest(parts), build) / "ethtool"


def fuzzer() -> Path:
    return ethtool().with_name("fuzz-napi")
