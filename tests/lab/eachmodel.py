# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-series`: each patch of a series compiles in the other preemption models, too.

Compiled are the objects that the series touches, with W=1, after each patch on top of those before
it: a few seconds a patch. That a patch breaks nothing else, and boots, is eachpatch.py's.
"""

from collections import Counter
from pathlib import Path

from lab.base import Base, read_base
from lab.eachpatch import (
    FLAVOUR,
    configured,
    grounds,
    made,
    numbered,
    objects,
    refuse,
    sources,
    touched_by,
    untried,
    warnings_in,
)
from lab.kernel import BASE_FLAVOURS, configure
from lab.progress import say, step


def check(name: str, first: int, last: int) -> None:
    """The patches with these numbers and between, in each model but the one that eachpatch builds.

    StepFailed with the warnings that the base lacks; ValueError where no patch has such a number.
    """
    base = read_base(name)
    asked = numbered(base, first, last)
    for flavour in flavours(name):
        compile_each(base, flavour, asked)


def flavours(name: str) -> list[str]:
    """The other models' of a base."""
    return [one for one in BASE_FLAVOURS[name] if one.startswith(f"{FLAVOUR}-")]


def compiled(tree: Path, label: str, files: list[str]) -> Counter[str]:
    """The warnings of what had to be compiled; make knows what has not."""
    touching = objects(tree, files)
    wanted = configured(tree, touching)
    if others := [one for one in touching if one not in wanted]:
        say(f"{label}: not in the configuration: {' '.join(others)}")
    with step(f"{label}: compiling what changed of {len(wanted)} objects with W=1"):
        return warnings_in(made(tree, "W=1", *wanted))


def compile_each(base: Base, flavour: str, asked: list[Path]) -> None:
    """Those asked for, each on top of all before it, as this flavour."""
    label, files = f"{base.name} {flavour}", touched_by(base)
    given = [*grounds(base, flavour), Path(__file__).read_text()]
    with sources(base, flavour) as tree:
        configure(tree, base.name, flavour, patched=False)
        known = compiled(tree, f"{label}: the base", files)
        for what, _files in untried(base, tree, asked, given, flavour):
            refuse(f"{label}: {what}", compiled(tree, f"{label}: {what}", files) - known)
