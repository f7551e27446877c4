# SPDX-License-Identifier: GPL-2.0-or-later
"""Packages of any Debian release by a private apt state beside the machine's own.

The mirror comes from the machine's own sources (asked of apt itself, which knows both of their
formats); the machine's sources, lists and installed packages stay untouched.
"""

import os
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from lab.cache import fetched, locked, replaced
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


def read_lists(
    home: Path, sources: Path, text: str, env: Mapping[str, str], options: Sequence[str] = ()
) -> None:
    """Has apt read the lists that ``text`` names, once a day and when it names others.

    apt itself waits for no other that reads them (DPkg::Lock::Timeout is for dpkg's lock alone):
    a second process waits here, and finds them read.
    """
    stamp = home / "updated"
    with locked(home / "updating.lock"):
        known = sources.exists() and sources.read_text() == text
        if known and stamp.exists() and time.time() - stamp.stat().st_mtime <= LISTS_LIVE_S:
            return
        # Gone until all is read: one that fails is tried again.
        stamp.unlink(missing_ok=True)
        replaced(sources, text)
        with step(f"reading the {'source' if options else 'package'} lists of Debian's releases"):
            tool(["apt-get", *options, "-q", "update"], env=env)
        stamp.touch()


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
    config = home / "apt.conf"
    replaced(
        config,
        f'Dir::Etc::sourcelist "/dev/null";\n'
        f'Dir::Etc::sourceparts "{home}/etc/sources.list.d";\n'
        f'Dir::Etc::preferencesparts "/dev/null";\n'
        f'Dir::State::lists "{home}/lists";\n'
        f'Dir::State::status "/dev/null";\n'
        f'Dir::Cache "{home}";\n'
        f'Acquire::Languages "none";\n'
        f'APT::Sandbox::User "root";\n',
    )
    env = {**os.environ, "APT_CONFIG": str(config), "LC_ALL": "C"}
    read_lists(home, home / "etc/sources.list.d/lab.sources", text, env)
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
    pattern = f"{package}_{version.replace(':', '%3a')}_*.deb"

    def fetch(folder: Path) -> None:
        with step(f"downloading {package} {version}"):
            tool(["apt-get", "-q", "download", f"{package}={version}"], env=state(), cwd=folder)

    found = fetched(cache("debs"), pattern, fetch)
    if found is None:
        raise StepFailed(f"apt downloaded {package} {version}, but no file {pattern} came of it")
    return found
