# SPDX-License-Identifier: GPL-2.0-or-later
"""What the packages hold, and the build script's pure parts."""

import re
import tomllib
from fnmatch import fnmatch
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

import rxlane
from package_build import make_room
from unit.packagefiles import DEBIAN, PACKAGES, TREE, debian, installed_patterns


def shipped() -> list[Path]:
    """What must be in a package beside the library: profiles, their files, plugins, manuals."""
    profiles = [path for path in (TREE / "tuned-profiles").rglob("*") if path.is_file()]
    plugins = (TREE / "plugins" / "tuned").glob("*.py")
    manuals = (TREE / "plugins" / "doc").glob("*.[1-9]")
    others = (path for name in ("completion", "systemd", "udev")
              for path in (TREE / "plugins" / name).iterdir())  # fmt: skip
    parts = (*profiles, *plugins, *manuals, *others)
    found = [path for path in parts if path.suffix != ".md"]
    return sorted(path.relative_to(TREE) for path in found)


def test_something_is_shipped() -> None:
    assert {path.parts[0] for path in shipped()} == {"plugins", "tuned-profiles"}


@pytest.mark.parametrize("path", shipped(), ids=str)
def test_every_file_is_in_a_package(path: Path) -> None:
    patterns = installed_patterns("install") + installed_patterns("manpages")
    assert [pattern for pattern in patterns if fnmatch(str(path), pattern)]


def test_the_folder_of_the_role_is_in_both_packages() -> None:
    """The command in the file that TuneD reads the role by makes no folder."""
    words = (TREE / "tuned-profiles/recommend.d/40-rxlane.conf").read_text()
    role = re.search(r"^#  +echo \S+ > (/\S+)$", words, re.MULTILINE)
    assert role is not None
    folder = str(Path(role[1]).parent)
    assert folder.strip("/") in debian("tuned-profiles-rxlane.dirs").splitlines()
    spec = (DEBIAN.parent / "rpm" / "rxlane.spec").read_text()
    listed = folder.replace("/etc", "%{_sysconfdir}")
    assert f"\n%dir {listed}\n" in spec and f"install -d %{{buildroot}}{listed}\n" in spec


def test_control_names_the_packages() -> None:
    names = re.findall(r"^Package: (\S+)$", (DEBIAN / "control").read_text(), re.MULTILINE)
    assert tuple(names) == PACKAGES


def test_one_version() -> None:
    head = (DEBIAN / "changelog").read_text().splitlines()[0]
    project = tomllib.loads((TREE / "plugins" / "pyproject.toml").read_text())["project"]
    match = re.fullmatch(r"rxlane \((\S+)\) \S+; urgency=\w+", head)
    assert match is not None
    assert match[1] == project["version"]
    spec = (DEBIAN.parent / "rpm" / "rxlane.spec").read_text()
    assert re.findall(r"^Version: +(\S+)$", spec, re.MULTILINE) == [project["version"]]
    assert rxlane.__version__ == project["version"]
    manuals = [*(TREE / "plugins" / "doc").glob("*.[1-8]")]
    heads = [
        re.search(r'^[.]TH .*"rxlane (\S+)"', one.read_text(), re.MULTILINE) for one in manuals
    ]
    assert manuals and {head and head[1] for head in heads} == {project["version"]}


def test_build_needs_are_listed() -> None:
    """packaging/packages.txt, which setup installs, holds every Build-Depends of control."""
    control = (DEBIAN / "control").read_text()
    field = re.search(r"^Build-Depends:((?:.*\n)(?:[ \t].*\n)*)", control, re.MULTILINE)
    assert field is not None
    needs = {need.split()[0] for need in field[1].replace("\n", " ").split(",")}
    # Virtual packages of debhelper and dh-python, which provide them.
    real = {"debhelper-compat": "debhelper", "dh-sequence-python3": "dh-python"}
    listed = (TREE / "packaging" / "packages.txt").read_text().splitlines()
    assert {real.get(need, need) for need in needs} <= set(listed)


# -- the build script -------------------------------------------------------------------------


def test_an_output_folder_keeps_what_is_of_others(tmp_path: Path) -> None:
    stays = {"other_1_all.deb", "rxlane-extra_0.1.0_all.deb", "rxlane-0.1.0-1.noarch.rpm"}
    for name in (*stays, "rxlane_0.1.0_all.deb", "ethtool_1%3a6.1-1_amd64.deb"):
        (tmp_path / name).touch()
    new = [Path("rxlane_0.2.0_all.deb"), Path("ethtool_1%3a6.2-1_amd64.deb")]
    make_room(tmp_path, new)
    assert {path.name for path in tmp_path.iterdir()} == stays
    make_room(tmp_path, [Path("rxlane-0.2.0-1.src.rpm"), Path("rxlane-0.2.0-1.noarch.rpm")])
    assert {path.name for path in tmp_path.glob("*.rpm")} == set()
    make_room(tmp_path / "new", new)
    assert (tmp_path / "new").is_dir()


@pytest.fixture(scope="module")
def build_debs() -> ModuleType:
    loader = SourceFileLoader("build_debs", str(TREE / "packaging" / "build-debs"))
    spec = spec_from_loader("build_debs", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_digest_sees_content_name_mode_and_date(build_debs: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("one")
    digests = [build_debs.digest(tmp_path, 1), build_debs.digest(tmp_path, 2)]
    file.write_text("two")
    digests.append(build_debs.digest(tmp_path, 1))
    file.chmod(0o755)
    digests.append(build_debs.digest(tmp_path, 1))
    file.rename(tmp_path / "b")
    digests.append(build_debs.digest(tmp_path, 1))
    assert len(set(digests)) == len(digests)
    assert build_debs.digest(tmp_path, 1) == digests[-1]


def test_every_suppressed_tag_has_a_reason(build_debs: ModuleType) -> None:
    assert build_debs.suppressed()
    lines = (TREE / "packaging" / "lintian-suppressed").read_text().splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        assert line.startswith("#") or before.startswith("#"), line


def test_a_given_version_heads_the_changelog(build_debs: ModuleType, tmp_path: Path) -> None:
    build_debs.lay_out_debian(tmp_path / "source", "0.1.0+next", 0)
    text = (tmp_path / "source" / "debian" / "changelog").read_text()
    assert text.startswith("rxlane (0.1.0+next) unstable; urgency=medium\n")
    assert "Thu, 01 Jan 1970 00:00:00" in text
    assert text.endswith((DEBIAN / "changelog").read_text())
