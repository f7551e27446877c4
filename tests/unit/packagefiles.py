# SPDX-License-Identifier: GPL-2.0-or-later
"""Where the packages are described, and what is said there."""

from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
DEBIAN = TREE / "packaging" / "debian"
PACKAGES = ("python3-rxlane", "rxlane", "tuned-profiles-rxlane", "rxlane-kernel-patches")


def installed_patterns(suffix: str) -> list[str]:
    """The source column of every debian/PACKAGE.`suffix` file."""
    lines = [
        line.split()
        for path in sorted(DEBIAN.glob(f"*.{suffix}"))
        for line in path.read_text().splitlines()
    ]
    return [words[0] for words in lines if words and not words[0].startswith("#")]


def debian(name: str) -> str:
    return (DEBIAN / name).read_text()
