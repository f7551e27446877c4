# SPDX-License-Identifier: GPL-2.0-or-later
"""A profile of rxlane that is on for a while, with variables of the test's."""

from collections.abc import Iterator
from contextlib import contextmanager

from conftest import Host, Settings


@contextmanager
def profile(host: Host, name: str, **variables: str) -> Iterator[Settings]:
    """The profile is on with these variables inside, and off after; yields what was before."""
    before, path = host.settings(), f"/etc/tuned/{name}-variables.conf"
    original = host.vm.read(path)
    text = "".join(f"{key}={value}\n" for key, value in variables.items())
    try:
        host.vm.put(text.encode(), path)
        host.run("tuned-adm", "profile", name, timeout=180)
        yield before
    finally:
        host.vm.put(original, path)
        host.run("tuned-adm", "off", timeout=180)
