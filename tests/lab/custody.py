# SPDX-License-Identifier: GPL-2.0-or-later
"""Custody of the kernel series: a git tree to write them in, and the way back to patch files.

The tree lies under build/kernel-BASE: Debian's source as the commit tagged ``base``, one commit
a patch after it. The export is byte-stable: the same commits give the same files anywhere.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from lab import apt
from lab.base import Base, apply_series, newest, read_base, touched, unpack, unpack_touched
from lab.paths import BUILD, PATCHES, TREE, cache
from lab.progress import StepFailed, say, step, tool

IDENTITY = {
    "GIT_AUTHOR_NAME": "rxlane developers",
    "GIT_AUTHOR_EMAIL": "developers@rxlane.invalid",
    "GIT_COMMITTER_NAME": "rxlane developers",
    "GIT_COMMITTER_EMAIL": "developers@rxlane.invalid",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
}
PREIMAGES = TREE / "tests" / "unit" / "preimages"
# A patch without a sign-off is meant: nobody has signed it off. Commits of mainline are unknown
# in any case, as Debian's source has no history.
CHECKPATCH_IGNORE = "MISSING_SIGN_OFF,FILE_PATH_CHANGES,UNKNOWN_COMMIT_ID"
REVIEW_TAGS = re.compile(
    r"^(Signed-off-by|Reviewed-by|Acked-by|Tested-by|Co-developed-by):", re.MULTILINE
)


def git(tree: Path, *words: str | Path, when: str | None = None) -> str:
    env = {**os.environ, **IDENTITY}
    if when:
        env["GIT_AUTHOR_DATE"] = env["GIT_COMMITTER_DATE"] = when
    return tool(["git", "-C", tree, *words], env=env)


def tree(name: str) -> Path:
    """Lays build/kernel-NAME: the base and the series as commits. Refuses to overwrite one."""
    base = read_base(name)
    target = BUILD / f"kernel-{name}"
    if target.exists():
        raise StepFailed(f"{target} is there already; move it away or `git -C {target} …` on")
    version = apt.choose(base.package, base.version)
    unpack(base, version, target)
    with step(f"laying {target.relative_to(BUILD.parent)}"):
        commit_base(target, f"{base.package} {version}")
        for patch in base.patches:
            git(target, "am", "-q", "--keep-cr", "--committer-date-is-author-date", patch)
    say(f"{len(base.patches)} patches over {base.package} {version}")
    return target


def export(repository: Path, out: Path) -> list[str]:
    """Writes the commits after ``base`` as patch files into ``out``; their names in order."""
    git(
        repository, "format-patch", "-q", "--zero-commit", "--full-index", "--no-signature", "-N",
        "--no-renames", "--diff-algorithm=histogram", "-U2", "--src-prefix=a/", "--dst-prefix=b/",
        "-o", out, "base",
    )  # fmt: skip
    return sorted(path.name for path in out.glob("*.patch"))


def refresh(name: str) -> None:
    """kernel-patches/NAME becomes what build/kernel-NAME holds; `series` with it."""
    repository = BUILD / f"kernel-{name}"
    if not repository.exists():
        raise StepFailed(f"{repository} is missing: run `make kernel-tree BASE={name}` first")
    folder = PATCHES / name
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        names = export(repository, out)
        changed = [n for n in names if not _same(out / n, folder / n)]
        gone = [path.name for path in folder.glob("*.patch") if path.name not in names]
        for patch in gone:
            (folder / patch).unlink()
        for patch in changed:
            shutil.copyfile(out / patch, folder / patch)
    (folder / "series").write_text("".join(f"{patch}\n" for patch in names))
    store_preimages(repository, name)
    say(f"{name}: {len(names)} patches, {len(changed)} changed, {len(gone)} removed")


def store_preimages(repository: Path, name: str) -> None:
    """Keeps the files that the series touches, as the base has them, for the unit test of export.

    Only with them can the way from patches to commits and back be tried without a kernel source.
    """
    files = sorted(
        {path for patch in read_base(name).patches for path in touched(patch.read_text())}
    )
    known = set(git(repository, "ls-tree", "-r", "--name-only", "base").splitlines())
    archive = PREIMAGES / f"{name}.tar.xz"
    archive.parent.mkdir(exist_ok=True)
    # By its attributes git tells which function a hunk is in.
    old = [path for path in (".gitattributes", *files) if path in known]
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "preimages.tar"
        git(repository, "archive", "--format=tar", "-o", plain, "base", "--", *old)
        tool(["xz", "-9", "--keep", "--threads=1", plain])
        shutil.copyfile(plain.with_suffix(".tar.xz"), archive)


def replay(base: Base, archive: Path, repository: Path) -> None:
    """A repository of the stored pre-images with the series applied on top as commits."""
    repository.mkdir()
    tool(["tar", "-xf", archive, "-C", repository])
    commit_base(repository, "pre-images")
    for patch in base.patches:
        git(repository, "am", "-q", "--keep-cr", "--committer-date-is-author-date", patch)


def commit_base(repository: Path, message: str) -> None:
    git(repository, "init", "-q", "-b", "rxlane")
    git(repository, "add", "-A", "-f")
    git(repository, "commit", "-q", "-m", message, when="@0 +0000")
    git(repository, "tag", "base")


def _same(new: Path, old: Path) -> bool:
    return old.exists() and old.read_bytes() == new.read_bytes()


def check_messages(base: Base) -> None:
    """Nobody's name under a patch, and the fields that say where it stands."""
    for patch in base.patches:
        head = patch.read_text(errors="replace").split("\ndiff --git", 1)[0]
        if tag := REVIEW_TAGS.search(head):
            raise StepFailed(f"{patch.name} carries {tag.group(0)!r}: only a person may give that")
        missing = [key for key in ("Origin:", "Forwarded:", "Last-Update:") if key not in head]
        if missing:
            raise StepFailed(f"{patch.name} lacks {' '.join(missing)} in its message")


def checkpatch(base: Base, source: Path) -> None:
    """Raises StepFailed with every complaint of checkpatch --strict but those of a generator."""
    said: list[str] = []
    for patch in base.patches:
        argv = ["perl", "scripts/checkpatch.pl", "--strict", "--no-tree", "--no-summary",
                "--terse", "--showfile", "--ignore", CHECKPATCH_IGNORE, str(patch)]  # fmt: skip
        done = subprocess.run(argv, cwd=source, capture_output=True, text=True, check=False)
        lines = (done.stdout + done.stderr).splitlines()
        kept = [line for line in lines if line and not is_generated(line, source)]
        if done.returncode and not lines:
            kept = [f"checkpatch ended with {done.returncode} and said nothing"]
        said += [f"{patch.name}: {line}" for line in kept]
    if said:
        raise StepFailed("checkpatch --strict complains:\n" + "\n".join(said))


def is_generated(complaint: str, source: Path) -> bool:
    """Whether a complaint of long lines is about a file that ynl-gen-c.py writes as it is."""
    file, _, rest = complaint.partition(":")
    if "line length of" not in rest or not (source / file).is_file():
        return False
    return "auto-generated from:" in (source / file).read_text(errors="replace")[:400]


def check_series(name: str) -> None:
    """Fuzz 0 on BASE and on the newest version that apt offers, messages and checkpatch."""
    base = read_base(name)
    if not base.patches:
        say(f"{name}: the series is empty; nothing to apply")
        return
    check_messages(base)
    pinned = apt.choose(base.package, base.version)
    for version in dict.fromkeys((pinned, newest(base))):
        source = cache("build") / f"series-{name}-{os.getpid()}"
        shutil.rmtree(source, ignore_errors=True)
        try:
            unpack_touched(base, version, source)
            with step(f"{len(base.patches)} patches on {base.package} {version}, fuzz 0"):
                apply_series(base, source)
            if version == pinned:
                with step("checkpatch --strict"):
                    checkpatch(base, source)
        finally:
            shutil.rmtree(source, ignore_errors=True)
