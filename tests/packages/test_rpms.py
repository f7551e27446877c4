# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-packages`: the RPMs hold what the debs hold, work from a root, and are reproducible.

They are installed into a folder, without scripts: no machine of ours runs RHEL or Fedora.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import rpmroot

TREE = Path(__file__).resolve().parents[2]
RPMS, DEBS = TREE / "build" / "rpms", TREE / "build" / "debs"
NAMES = ("python3-rxlane", "rxlane", "tuned-profiles-rxlane", "rxlane-kernel-patches")
SITE = "usr/lib/python3.12/site-packages"
# What only one of the two kinds of packages has, and where they differ in the same thing.
ONLY_DEB = ("usr/share/doc/", "usr/share/lintian/")
ONLY_RPM = ("usr/share/doc/", "usr/share/licenses/", "usr/lib/systemd/system-preset/")
RENAMED = (("usr/lib/python3/dist-packages", SITE), ("lib/systemd/", "usr/lib/systemd/"))

Content = dict[str, tuple[int, bytes]]


def run(argv: Sequence[str | Path], pythonpath: Path | None = None) -> str:
    """What it printed; fails the test with that where it fails."""
    env = {**os.environ, "PYTHONPATH": str(pythonpath)} if pythonpath else None
    done = subprocess.run(argv, cwd=TREE, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def content(root: Path) -> Content:
    """{path below root: (mode, content)} of all files and of folders with a mode of their own."""
    found = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode & 0o7777
        name = str(path.relative_to(root))
        if path.is_file():
            found[name] = (mode, path.read_bytes())
        elif mode != 0o755:
            found[f"{name}/"] = (mode, b"")
    return found


def as_in_rpm(path: str) -> str:
    for old, new in RENAMED:
        if path.startswith(old):
            return new + path.removeprefix(old)
    return path


def of_deb(name: str, into: Path) -> Content:
    (deb,) = DEBS.glob(f"{name}_*.deb")
    run(["dpkg-deb", "-x", deb, into])
    found = {as_in_rpm(path): value for path, value in content(into).items()}
    return {path: value for path, value in found.items() if not path.startswith(ONLY_DEB)}


def install(root: Path, *names: str) -> None:
    rpmroot.install(root, [next(RPMS.glob(f"{name}-[0-9]*.noarch.rpm")) for name in names])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("root")
    install(made, *NAMES)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_rpm_holds_what_the_deb_holds(name: str, tmp_path: Path) -> None:
    install(tmp_path / "rpm", name)
    mine = {
        path: value
        for path, value in content(tmp_path / "rpm").items()
        if not path.startswith((*ONLY_RPM, "var/lib/rpm"))
    }
    theirs = of_deb(name, tmp_path / "deb")
    assert mine.keys() == theirs.keys()
    # Both are of this tree, but compressed and noted down by other tools.
    by_tools = {path for path in mine if path.endswith((".gz", "RECORD", "WHEEL", "METADATA"))}
    differing = {path for path in mine.keys() - by_tools if mine[path] != theirs[path]}
    assert differing == set()
    assert {path for path in by_tools if mine[path][0] != theirs[path][0]} == set()


def test_unit_tests_pass_with_the_installed_library(root: Path) -> None:
    site = root / SITE
    found = run([sys.executable, "-c", "import rxlane; print(rxlane.__file__)"], site).strip()
    assert Path(found).is_relative_to(site)
    # In place of the folders of pyproject.toml, of which one has the library's sources.
    words = ["-o", f"pythonpath=tests packaging {site}", "-q", "-p", "no:cacheprovider"]
    print(run([sys.executable, "-m", "pytest", "tests/unit", *words], site).splitlines()[-1])


@pytest.mark.parametrize(("script", "kind"), [("build-debs", "deb"), ("build-rpms", "rpm")])
def test_two_builds_are_equal_bit_by_bit(script: str, kind: str, tmp_path: Path) -> None:
    first = {
        path.name: path.read_bytes() for path in (TREE / "build" / f"{kind}s").glob(f"*.{kind}")
    }
    force = ["--force"] if kind == "deb" else []
    run([TREE / "packaging" / script, "--output", tmp_path, *force])
    second = {path.name: path.read_bytes() for path in tmp_path.glob(f"*.{kind}")}
    of_kind = {"deb": "{}_[0-9]*.deb", "rpm": "{}-[0-9]*.noarch.rpm"}[kind]
    assert [name for name in NAMES if not list(tmp_path.glob(of_kind.format(name)))] == []
    assert second == {name: first[name] for name in second}
