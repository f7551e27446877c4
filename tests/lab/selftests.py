# SPDX-License-Identifier: GPL-2.0-or-later
"""The selftests of networking and interrupts of a base, as a folder that a guest can be given."""

import os
import shutil
import tarfile
from pathlib import Path

from lab import apt
from lab.base import Base, apply_series, read_base, source_archive, touched
from lab.cache import built, digest
from lab.progress import step, tool

# What they are, and what they find by its place beside them.
FOLDERS = (
    "Documentation/netlink/",
    "tools/net/ynl/",
    "tools/scripts/",
    "tools/testing/selftests/drivers/net/",
    "tools/testing/selftests/irq/",
    "tools/testing/selftests/kselftest",
    "tools/testing/selftests/net/",
    # ynl's code generator looks for the top of the source by it.
    "MAINTAINERS",
    "include/uapi/linux/",
)
# Programs of the tests that have to be compiled, and what else each needs.
YNL = "tools/net/ynl"
PROGRAMS = {
    "drivers/net/napi_id_helper": (),
    "net/lib/xdp_helper": (),
    "net/busy_poller": (f"-I{YNL}/lib", f"-I{YNL}/generated", f"{YNL}/libynl.a"),
}
# Those of our series, which need the interface that it brings.
OURS = ("net/napi_set", "net/rx_threads_flows")
INTERFACE = "include/uapi/linux/netdev.h"


def selftests(name: str, patched: bool = True) -> Path:
    """A folder ``ksrc`` laid out like the kernel's source, with our series applied or as it came.

    The programs that its tests call are compiled too.
    """
    base = read_base(name)
    version = apt.choose(base.package, base.version)
    patches = [patch.read_bytes() for patch in base.patches] if patched else []
    key = digest([base.package, version, Path(__file__).read_bytes(), *patches])

    def lay(out: Path) -> None:
        target = out / "ksrc"
        if patched:
            _read(base, version, target, {f for p in base.patches for f in touched(p.read_text())})
            apply_series(base, target)
            # By itself: the other headers of the tree are not for programs as they are.
            own = target / "own" / "linux"
            own.mkdir(parents=True)
            shutil.copy(target / INTERFACE, own)
            ours = [name for name in OURS if _source(target, name).exists()]
            _compile(target, dict.fromkeys(ours, ("-Iown",)))
        else:
            _read(base, version, target, set())
            _generate(target)
            _compile(target, PROGRAMS)

    return built("selftests", key, lay) / "ksrc"


def _read(base: Base, version: str, target: Path, files: set[str]) -> None:
    with (
        step(f"reading the selftests of {base.package} {version}"),
        source_archive(base, version) as archive,
        tarfile.open(archive) as source,
    ):
        for member in source:
            path = member.name.partition("/")[2]
            if path in files or path.startswith(FOLDERS):
                member.name = path
                source.extract(member, target)


def _generate(tree: Path) -> None:
    # The generator runs by `env python3` and needs Debian's python3-yaml and python3-jsonschema.
    env = {**os.environ, "PATH": f"/usr/bin:{os.environ['PATH']}"}
    tool(["make", "-s", "-C", YNL, "GENS=netdev", "RSTS=", "libynl.a"], cwd=tree, env=env)
    for folder in list(tree.rglob("__pycache__")):
        shutil.rmtree(folder)


def _source(tree: Path, program: str) -> Path:
    return tree / f"tools/testing/selftests/{program}.c"


def _compile(tree: Path, programs: dict[str, tuple[str, ...]]) -> None:
    for name, more in programs.items():
        path = f"tools/testing/selftests/{name}"
        argv = ["gcc", "-O2", "-o", path, f"{path}.c", "-idirafter", "include/uapi", *more]
        tool(argv, cwd=tree)
