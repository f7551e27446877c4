# SPDX-License-Identifier: GPL-2.0-or-later
"""What every package of this tree is made of, when it was last changed, and how builds are run."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
FOLDERS = ("kernel-patches", "packaging", "plugins", "tuned-profiles")
SOURCES = (*FOLDERS, "LICENSE")
# What tools leave between the sources.
DROSS = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", ".*_cache", "build", "dist")
LOG_TAIL = 40


class BuildError(Exception):
    """The packages could not be built; the text says why."""


def source_epoch() -> int:
    """Seconds since 1970 of the last commit to the sources; without git, of the changelog."""
    git = ["git", "-C", str(TREE), "log", "-1", "--format=%ct", "--", *SOURCES]
    changelog = ["dpkg-parsechangelog", "-S", "Timestamp", "-l", "packaging/debian/changelog"]
    for argv in (git, changelog):
        try:
            done = subprocess.run(argv, cwd=TREE, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            continue
        if done.returncode == 0 and done.stdout.strip():
            return int(done.stdout)
    raise BuildError("neither git nor dpkg-parsechangelog tells a date; run `make setup`")


def lay_out(target: Path) -> None:
    """Copy the sources into `target`."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in FOLDERS:
        shutil.copytree(TREE / name, target / name, ignore=DROSS)
    shutil.copy2(TREE / "LICENSE", target / "LICENSE")


def digest(tree: Path, epoch: int) -> str:
    """Hash of every file below `tree` (path, mode, content) and the date."""
    total = hashlib.sha256(str(epoch).encode())
    for path in sorted(p for p in tree.rglob("*") if p.is_file()):
        executable = os.access(path, os.X_OK)
        total.update(f"\n{path.relative_to(tree)} {executable} ".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def package_name(package: Path) -> str:
    """What a .deb or .rpm is a package of, by its file's name: that without version and machine."""
    if package.suffix == ".deb":
        return package.name.partition("_")[0]
    return package.name.rsplit("-", 2)[0]


def make_room(output: Path, packages: Sequence[Path]) -> None:
    """Make the folder, without the files that these packages replace; others' stay."""
    output.mkdir(parents=True, exist_ok=True)
    names = {package_name(package) for package in packages}
    for suffix in {package.suffix for package in packages}:
        for old in output.glob(f"*{suffix}"):
            if package_name(old) in names:
                old.unlink()


def logged(argv: list[str], cwd: Path, log: Path, epoch: int) -> None:
    """Run `argv` with its output in `log`; on failure show the log's end and raise."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "LC_ALL": "C.UTF-8"}
    # Variables of a caller's make or venv must not reach the package build.
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONPATH", "VIRTUAL_ENV"):
        environment.pop(name, None)
    environment["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
    with log.open("w") as out:
        try:
            done = subprocess.run(
                argv,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
            )
        except FileNotFoundError as error:
            raise BuildError(f"{argv[0]} is not installed; run `make setup`") from error
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL:])
        raise BuildError(f"{tail}\n{argv[0]} failed with {done.returncode}; whole log: {log}")
