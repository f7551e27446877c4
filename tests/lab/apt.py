# SPDX-License-Identifier: GPL-2.0-or-later
"""Packages of any Debian release by a private apt state beside the machine's own.

The mirror comes from the machine's own sources (asked of apt itself, which knows both of their
formats); the machine's sources, lists and installed packages stay untouched.
"""

import os
import time
from functools import lru_cache
from pathlib import Path

from lab.paths import cache
from lab.progress import StepFailed, say, step, tool

SUITES = "bookworm bookworm-backports trixie trixie-updates trixie-backports forky sid".split()
SECURITY_SUITES = "bookworm-security trixie-security".split()
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Container images switch apt's caches off in apt.conf.d, which only words of the command line beat;
# without them every question costs a walk through all lists.
CACHED = (
    "-o",
    "Dir::Cache::pkgcache=pkgcache.bin",
    "-o",
    "Dir::Cache::srcpkgcache=srcpkgcache.bin",
)
LISTS_LIVE_S = 24 * 3600


class NoPackage(Exception):
    """No release that apt reaches offers the package."""


def mirrors() -> dict[str, str]:
    """{"Debian": URI, "Debian-Security": URI} of the machine's own apt sources."""
    shown = tool(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(ORIGIN)|$(LABEL)|$(REPO_URI)",
            "Created-By: Packages",
        ]
    )
    found: dict[str, str] = {}
    for line in shown.splitlines():
        origin, label, uri = line.split("|")
        if origin == "Debian":
            found.setdefault(label, uri)
    if "Debian" not in found:
        raise NoPackage("apt on this machine has no Debian source: run `apt-get update` first")
    return found


def stanza(uri: str, suites: list[str], components: str) -> str:
    return (
        f"Types: deb\nURIs: {uri}\nSuites: {' '.join(suites)}\n"
        f"Components: {components}\nSigned-By: {KEYRING}\n\n"
    )


@lru_cache
def state() -> dict[str, str]:
    """The environment in which apt uses the private state; lists are refreshed once a day."""
    home = cache("apt")
    for part in ("etc/sources.list.d", "lists/partial", "archives/partial"):
        (home / part).mkdir(parents=True, exist_ok=True)
    found = mirrors()
    text = stanza(found["Debian"], SUITES, "main non-free")
    if "Debian-Security" in found:
        text += stanza(found["Debian-Security"], SECURITY_SUITES, "main")
    (home / "etc/sources.list.d/lab.sources").write_text(text)
    config = home / "apt.conf"
    config.write_text(
        f'Dir::Etc::sourcelist "/dev/null";\n'
        f'Dir::Etc::sourceparts "{home}/etc/sources.list.d";\n'
        f'Dir::Etc::preferencesparts "/dev/null";\n'
        f'Dir::State::lists "{home}/lists";\n'
        f'Dir::State::status "/dev/null";\n'
        f'Dir::Cache "{home}";\n'
        f'Acquire::Languages "none";\n'
        f'APT::Sandbox::User "root";\n'
    )
    env = {**os.environ, "APT_CONFIG": str(config), "LC_ALL": "C"}
    stamp = home / "updated"
    if not stamp.exists() or time.time() - stamp.stat().st_mtime > LISTS_LIVE_S:
        with step("reading the package lists of Debian's releases"):
            tool(["apt-get", "-q", "update"], env=env)
        stamp.touch()
    return env


@lru_cache
def offered(package: str) -> list[tuple[str, str]]:
    """[(version, suite)] of a binary package, newest first, as apt sorts versions."""
    rows = []
    for line in tool(["apt-cache", *CACHED, "madison", package], env=state()).splitlines():
        name, version, source = (field.strip() for field in line.split("|"))
        if name == package and source.endswith("Packages"):
            rows.append((version, source.split()[1].split("/")[0]))
    if not rows:
        raise NoPackage(f"no release that apt reaches offers {package}")
    return rows


def choose(package: str, version: str) -> str:
    """``version`` while it is served, else the newest one offered, and says so."""
    versions = [known for known, _suite in offered(package)]
    if version in versions:
        return version
    say(f"{package} {version} is no longer served; falling forward to {versions[0]}")
    return versions[0]


def download(package: str, version: str) -> Path:
    """The .deb of exactly this version, from the cache or by apt."""
    home = cache("debs")
    name = f"{package}_{version.replace(':', '%3a')}_"
    for known in home.glob(f"{name}*.deb"):
        return known
    with step(f"downloading {package} {version}"):
        tool(["apt-get", "-q", "download", f"{package}={version}"], env=state(), cwd=home)
    for known in home.glob(f"{name}*.deb"):
        return known
    raise StepFailed(f"apt downloaded {package} {version}, but no file {name}*.deb came of it")
