# SPDX-License-Identifier: GPL-2.0-or-later
"""Rules that hold for every file of the tree: licence headers, and nothing of one machine."""

import re
import subprocess
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
CODE = {".py", ".sh", ".c", ".h", ".service", ".rules", ".mk"}
OURS, LINUX = "GPL-2.0-or-later", "GPL-2.0-only"
SPDX = re.compile(r"SPDX-License-Identifier: (\S+)")


def tracked() -> list[Path]:
    """Files that git knows or would add; without git, all but what runs leave behind."""
    argv = ["git", "-C", str(TREE), "ls-files", "-z", "-co", "--exclude-standard"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        paths = [TREE / name for name in done.stdout.split("\0") if name]
    else:
        left = {"build", "__pycache__", ".git", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
        paths = [path for path in TREE.rglob("*") if not left & set(path.parts)]
    return sorted(path for path in paths if path.is_file())


def text(path: Path) -> str:
    """The file as text; "" for a binary one (a plot, a recorded dump)."""
    data = path.read_bytes()
    return "" if b"\0" in data else data.decode(errors="replace")


def is_code(path: Path) -> bool:
    if path.name == "Makefile" or path.suffix in CODE:
        return True
    return path.suffix == "" and text(path).startswith("#!")


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return {str(path.relative_to(TREE)): text(path) for path in tracked()}


def test_every_code_file_has_its_licence(files: dict[str, str]) -> None:
    wrong = {}
    for name, content in files.items():
        if is_code(TREE / name):
            found = SPDX.search("\n".join(content.splitlines()[:4]))
            if found is None or found[1] != OURS:
                wrong[name] = found and found[1]
    assert not wrong


def test_new_files_in_patches_have_their_licence(files: dict[str, str]) -> None:
    """A file that a kernel patch adds names a GPL-2.0 licence in its first lines."""
    wrong = []
    for name, content in files.items():
        if name.startswith("kernel-patches/") and name.endswith(".patch"):
            for added in re.split(r"^diff --git ", content, flags=re.MULTILINE)[1:]:
                code = re.match(r"a/\S+ b/\S+\.(c|h|py|sh|yaml)\n", added)
                if code and "\n--- /dev/null\n" in added and not SPDX.search(added[:1000]):
                    wrong.append((name, added.splitlines()[0]))
    assert not wrong


def test_licence_texts(files: dict[str, str]) -> None:
    licence = files["LICENSE"]
    assert "GNU GENERAL PUBLIC LICENSE" in licence and "Version 2, June 1991" in licence
    assert OURS in licence and LINUX in licence


def test_no_path_of_a_developers_machine(files: dict[str, str]) -> None:
    """Neither where this checkout lies nor anybody's home stands in a file."""
    here = re.compile(rf"{re.escape(str(TREE))}\b|(?<![\w.}}])/home/\w")
    found = {name: match[0] for name, content in files.items() if (match := here.search(content))}
    assert not found


def apt_hosts() -> set[str]:
    """Hosts that apt fetches from on this machine."""
    places = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    sources = "\n".join(path.read_text(errors="replace") for path in places if path.is_file())
    return set(re.findall(r"https?://([^/\s:]+)", sources))


def test_no_host_of_a_package_registry(files: dict[str, str]) -> None:
    """Where packages come from is the machine's business: no file names its mirrors."""
    hosts = apt_hosts()
    found = {(name, h) for name, content in files.items() for h in hosts if h in content}
    assert not found


def test_every_target_is_explained(files: dict[str, str]) -> None:
    """What the Makefile declares phony, `make help` shows; venv is a part of others."""
    makefile = files["Makefile"].replace("\\\n", " ")
    phony = re.search(r"^\.PHONY:(.*)$", makefile, re.MULTILINE)
    assert phony is not None
    shown = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert set(phony[1].split()) - shown == {"venv"}


def test_the_readme_sends_nobody_to_a_file_that_is_not_there(files: dict[str, str]) -> None:
    """The rows of its tables "to change X, edit Y"; the first table is about the library."""
    _, library, rest = files["README.md"].split("| to change | edit |")
    for table, top in ((library, TREE / "plugins" / "rxlane"), (rest, TREE)):
        rows = [row for row in table.splitlines() if row.startswith("| ")]
        named = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[1])]
        paths = [name for name in named if not name.startswith("make ") and "MODULE" not in name]
        assert len(paths) >= len(rows) - 3
        assert [name for name in paths if not list(top.glob(name.rstrip("/")))] == []
