# SPDX-License-Identifier: GPL-2.0-or-later
"""A profile of rxlane that is on for a while, with variables or sections of the test's."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from conftest import Host, Settings
from rxlane.policy import NAPI, names

OWN = "of-a-test"
# {kind of section: {option: value}}
Sections = Mapping[str, Mapping[str, str]]


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


def text_of(policy: Sections, devices: Sequence[str] = ()) -> str:
    """The sections as TuneD reads them, each for these devices, or for all."""
    own = {"devices": ",".join(devices)} if devices else {}
    return "".join(
        f"[{kind}]\n" + "".join(f"{name}={value}\n" for name, value in {**own, **options}.items())
        for kind, options in policy.items()
    )


def words_of(policy: Sections) -> tuple[str, ...]:
    """The same for the command line, where names that [napi] has, too, have their section's."""
    return tuple(
        word
        for kind, options in policy.items()
        for name, value in options.items()
        for word in ("-o", f"{'' if kind == NAPI or name not in names(NAPI) else kind + '.'}"
                           f"{name}={value}")
    )  # fmt: skip


@contextmanager
def laid_out(host: Host, policy: Sections, devices: Sequence[str] = ()) -> Iterator[None]:
    """A profile of these sections is on inside, and off after."""
    folder = f"/etc/tuned/profiles/{OWN}"
    host.run("mkdir", "-p", folder)
    host.vm.put(text_of(policy, devices).encode(), f"{folder}/tuned.conf")
    try:
        host.run("tuned-adm", "profile", OWN, timeout=180)
        yield
    finally:
        host.run("tuned-adm", "off", timeout=180)
        host.run("rm", "-r", folder)
