# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-series`: each patch of a series builds alone, brings no warning of its own, boots.

Built is the lab's configuration with all drivers that the series touches, with W=1; of the files
that a patch touches sparse is asked, too, and in the end of all. A guest with each kernel answers
by every kind of NIC. Objects of the whole series are built once more with Debian's own amd64
configuration.

That takes hours. What passed is kept by the hash of all that it was built from, so that a run that
was ended goes on where it was, and a patch that is changed has those after it tried again. Of a few
patches it can be asked by their numbers.
"""

import json
import lzma
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from lab import apt, splat
from lab.base import Base, apply_series, read_base, touched, unpacked
from lab.cache import built as kept
from lab.cache import digest
from lab.kernel import (
    KernelImage,
    build_environment,
    code_of,
    compiler,
    configure,
    not_held,
    wanted_of,
)
from lab.machine import GuestSpec
from lab.paths import cache
from lab.progress import StepFailed, say, step, tool
from lab.sparse import sparse
from lab.vm import Guest, GuestLost, Splat

# All that the series touches, with PREEMPT_DYNAMIC; other models are eachmodel.py's.
FLAVOUR = "series"
# How sparse, or the kernel that it reads, says that it is too old to be believed.
OUTDATED = re.compile(r"sparse.*(up[- ]to[- ]date|out[- ]of[- ]date|too old)", re.IGNORECASE)
# sparse calls "error" what fails no build: contexts, address spaces, RCU pointers.
COMPLAINT = re.compile(r": (?:warning|error): |\bWARNING: |\bWarning: ")
# What any patch moves: lines and columns, and offsets in the words of modpost.
PLACE = re.compile(r"(?<=\S):\d+(?::\d+)?(?=: (?:warning|error): )|\+0x[0-9a-f]+\b")
# One of a C file itself, which is read once; those of a header come with each file that reads it.
OWN = re.compile(r"\S+\.c: ")
# Programs of the tree, not parts of the kernel: the selftests, which the guests run.
PROGRAMS = ("tools/", "samples/", "scripts/")
# Drivers of machines that no configuration for amd64 has: such a change is built nowhere here.
FOREIGN = ("drivers/s390/",)


def sources(base: Base, purpose: str) -> AbstractContextManager[Path]:
    """The source that the series is for."""
    return unpacked(base, apt.choose(base.package, base.version), purpose)


def warnings_in(log: str) -> Counter[str]:
    """Those of compiler, modpost, sparse and kernel-doc without their places, and how many."""
    found = Counter(PLACE.sub("", line) for line in log.splitlines() if COMPLAINT.search(line))
    return Counter({line: n if OWN.match(line) else 1 for line, n in found.items()})


def objects(tree: Path, files: list[str]) -> list[str]:
    """Those that the C files of the kernel among ``files`` that are in the tree are built into."""
    others = (*PROGRAMS, *FOREIGN)
    kernel = (name for name in files if name.endswith(".c") and not name.startswith(others))
    units = [unit(tree, name) for name in kernel if (tree / name).exists()]
    return [f"{name.removesuffix('.c')}.o" for name in dict.fromkeys(units)]


def unit(tree: Path, name: str) -> str:
    """The C file that the compiler is given for this one: itself, or that beside it which has it.

    The scheduler includes most of its files in a few others.
    """
    included = f'#include "{Path(name).name}"\n'.encode()
    beside = (tree / name).parent.glob("*.c")
    found = (str(one.relative_to(tree)) for one in beside if included in one.read_bytes())
    return next(found, name)


def take_in_options(tree: Path, name: str, flavour: str) -> None:
    """Sets those options of the series that its patches have brought by now."""
    wanted = wanted_of(name, flavour, patched=True)
    new = not_held(wanted, (tree / ".config").read_text())
    if new:
        with (tree / ".config").open("a") as config:
            config.write("".join(f"{line}\n" for line in new))
        made(tree, "olddefconfig")


def made(tree: Path, *words: str) -> str:
    """Everything that make said; StepFailed with its tail."""
    log = tree / "each.log"
    log.unlink(missing_ok=True)
    argv = ["make", f"-j{os.cpu_count() or 2}", *compiler(), *words]
    tool(argv, cwd=tree, env=build_environment(), log=log)
    return log.read_text(errors="replace")


def built(tree: Path, name: str, what: str) -> Counter[str]:
    with step(f"{name}: building {what} with W=1"):
        return warnings_in(made(tree, "W=1", "bzImage"))


def checked(tree: Path, name: str, what: str, files: list[str]) -> Counter[str]:
    """What sparse warns of in these files; each of them has to be part of the kernel built."""
    wanted = objects(tree, files)
    if lacking := [one for one in wanted if not (tree / one).exists()]:
        raise StepFailed(f"{what}: not in the configuration, so not checked: {' '.join(lacking)}")
    if not wanted:
        return Counter()
    with step(f"{name}: sparse on {len(wanted)} files of {what}"):
        # As built, so that sparse alone is run and not the compiler again.
        said = made(tree, "W=1", "C=2", f"CHECK={sparse()}", *wanted)
    if outdated := OUTDATED.search(said):
        raise StepFailed(f"this sparse is not to be believed: {outdated[0]}")
    return warnings_in(said)


def refuse(what: str, new: Counter[str]) -> None:
    if new:
        raise StepFailed(f"{what} adds warnings:\n" + "\n".join(sorted(new.elements())))


def booted(tree: Path, name: str, what: str) -> None:
    """A guest with this kernel answers by each kind of NIC, and its kernel complains of nothing."""
    release = (tree / "include/config/kernel.release").read_text().strip()
    image = KernelImage(tree / "arch/x86/boot/bzImage", release, name, FLAVOUR, True)
    spec = GuestSpec(cpus=2, e1000e=True, vmxnet3=True, igb=True)
    try:
        with Guest(image, spec) as guest:
            for nic, _queues in spec.nics():
                guest.ping(nic)
            guest.check_splats()
    except (GuestLost, Splat) as fault:
        raise StepFailed(f"{what}: {fault}") from fault


def grounds(base: Base, flavour: str) -> list[str]:
    """What the outcome depends on beside the patches."""
    config = json.dumps([wanted_of(base.name, flavour, patched) for patched in (False, True)])
    version = apt.choose(base.package, base.version)
    judges = (Path(name).read_text() for name in (__file__, splat.__file__))
    tools = (tool(["gcc", "--version"]), str(sparse()), *judges)
    return [base.package, version, config, *tools]


def keys(given: Iterable[str], patches: Iterable[bytes]) -> Iterator[str]:
    """For each patch a hash of it and of those before it, but not of their messages."""
    parts: list[bytes | str] = [*given]
    for patch in patches:
        parts.append(code_of(patch))
        yield digest(parts)


def known_warnings(tree: Path, base: Base, files: list[str], given: list[str]) -> Counter[str]:
    """Those of the base, which lies in ``tree``, as built and by sparse in these files."""

    def find(out: Path) -> None:
        known = built(tree, base.name, "the base") | checked(tree, base.name, "the base", files)
        (out / "warnings").write_text(json.dumps(known))

    folder = kept("each", digest([*given, *files]), find)
    return Counter(json.loads((folder / "warnings").read_text()))


def try_patch(tree: Path, name: str, what: str, files: list[str], known: Counter[str]) -> None:
    refuse(what, built(tree, name, what) - known)
    refuse(what, checked(tree, name, what, files) - known)
    booted(tree, name, what)


def number_of(patch: Path) -> int:
    """26 of 0026-genirq-….patch."""
    return int(patch.name.partition("-")[0])


def numbered(base: Base, first: int, last: int) -> list[Path]:
    """The patches with these numbers and between; ValueError where none has one."""
    asked = [patch for patch in base.patches if first <= number_of(patch) <= last]
    if not asked:
        raise ValueError(f"{base.name}: no patch has a number from {first} to {last}")
    return asked


def touched_by(base: Base) -> list[str]:
    """The files that the series changes."""
    return sorted({file for patch in base.patches for file in touched(patch.read_text())})


def untried(
    base: Base, tree: Path, asked: list[Path], given: list[str], flavour: str
) -> Iterator[tuple[str, list[str]]]:
    """Lays patch upon patch; names and files of those asked for that have not passed before.

    One has passed when the next is asked for.
    """
    marks = keys(given, (patch.read_bytes() for patch in base.patches))
    for patch, mark in zip(base.patches, marks, strict=True):
        tool(["patch", "-p1", "-F0", "-s", "-i", patch], cwd=tree)
        take_in_options(tree, base.name, flavour)
        passed = cache("each") / mark
        if patch not in asked:
            say(f"{base.name}: {patch.name} applies; not asked for, not built")
        elif passed.exists():
            say(f"{base.name}: {patch.name} passed before on the same grounds: {passed}")
        else:
            yield patch.name, touched(patch.read_text())
            passed.mkdir()


def check(name: str, first: int, last: int) -> None:
    """The patches with these numbers and between; of all, with Debian's configuration, too.

    StepFailed with the warnings that the base lacks; ValueError where no patch has such a number.
    """
    base = read_base(name)
    asked = numbered(base, first, last)
    build_each(base, asked)
    if asked == list(base.patches):
        build_as_debian(base)


def build_each(base: Base, asked: list[Path]) -> None:
    """Those asked for, each on top of all before it, and the whole if it ends with one of them."""
    name = base.name
    everything = touched_by(base)
    if foreign := [file for file in everything if file.startswith(FOREIGN)]:
        say(f"{name}: of other machines, not built: {' '.join(foreign)}")
    given = grounds(base, FLAVOUR)
    with sources(base, "each") as tree:
        configure(tree, name, FLAVOUR, patched=False)
        known = known_warnings(tree, base, everything, given)
        for what, files in untried(base, tree, asked, given, FLAVOUR):
            try_patch(tree, name, what, files, known)
        if base.patches[-1] not in asked:
            return
        built(tree, name, "the series")
        refuse("the series", checked(tree, name, "the series", everything) - known)


def debian_config(base: Base) -> str:
    """The text of Debian's own amd64 configuration of this kernel."""
    package = base.package.replace("source", "config")
    deb = apt.download(package, apt.choose(package, base.version))
    with tempfile.TemporaryDirectory(dir=cache("build")) as scratch:
        tool(["dpkg-deb", "-x", deb, scratch])
        packed = next(Path(scratch).glob("usr/src/linux-config-*/config.amd64_none_amd64.xz"))
        return lzma.decompress(packed.read_bytes()).decode()


def configured(tree: Path, wanted: list[str]) -> list[str]:
    """Those of the objects that the configuration builds, as kbuild itself lists them."""
    # What it lists goes by what it took over of the configuration.
    made(tree, "syncconfig")
    roots = ("srcroot=.", "srctree=.", "objtree=.")
    argv = ["make", "-f", "scripts/Makefile.build", "-pn", *roots]
    found: set[str] = set()
    for folder in sorted({str(Path(one).parent) for one in wanted}):
        words = [*argv, "need-builtin=1", "need-modorder=1", f"obj={folder}"]
        # Nothing is made: what a rule would lack there is no failure.
        said = subprocess.run(words, cwd=tree, capture_output=True, text=True, check=False).stdout
        lists = re.findall(r"^real-obj-[ym] := (.*)$", said, re.MULTILINE)
        found.update(one for row in lists for one in row.split())
    return [one for one in wanted if one in found]


def build_as_debian(base: Base) -> None:
    """The objects that the series touches and Debian's configuration has, with that."""
    name = base.name
    with sources(base, "debian") as tree:
        apply_series(base, tree)
        (tree / ".config").write_text(debian_config(base))
        made(tree, "olddefconfig")
        touching = objects(tree, touched_by(base))
        wanted = configured(tree, touching)
        if "net/core/dev.o" not in wanted:
            raise StepFailed(f"{name}: kbuild lists no objects of net/core: {' '.join(wanted)}")
        say(f"{name}: not in Debian's: {' '.join(one for one in touching if one not in wanted)}")
        with step(f"{name}: building {len(wanted)} objects with Debian's configuration"):
            made(tree, *wanted)
