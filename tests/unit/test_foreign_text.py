# SPDX-License-Identifier: GPL-2.0-or-later
"""Names and texts of others: no control characters come out, and no locale makes a traceback."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import rxlane
from rxlane import cli, codec, kernel
from rxlane.command import request
from rxlane.host.devices import _below
from rxlane.host.logins import below
from rxlane.linkfiles import linkfile
from rxlane.model import Snapshot
from rxlane.samples import Sample
from rxlane.showing import rates, sanitize, svg, table
from rxlane.sysfs import Sysfs
from rxlane.wire import rtnetlink
from unit import simhost
from unit.simhost import SimHost

ODD = "e\x1b[31m\x07\ufffe"
SHOWN = "e?[31m??"
SNOW = "eth\u2603"


def host(name: str) -> Snapshot:
    start = simhost.snapshot(simhost.link(name), simhost.link("br0", 0, ifindex=3, base=9000))
    bridge = replace(start.links[1], below=(name,), napis=(), physical=False)
    return replace(start, links=(start.links[0], bridge), sessions=(name,), notes=(f"{name} x",))


@pytest.fixture(params=[ODD, SNOW])
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[SimHost]:
    sim = SimHost(host(name))
    monkeypatch.setattr(kernel, "Linux", lambda brief=False: sim)
    monkeypatch.setattr(rtnetlink, "resolve", lambda _: None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    yield sim


def unshown(text: str) -> list[str]:
    return [letter for letter in text if not letter.isprintable() and letter != "\n"]


@pytest.mark.parametrize(
    "argv",
    [
        ("map",),
        ("plan", "-o", "threaded=on"),
        ("plan", "-o", "threaded=on", "br0"),
        ("plan", "-o", "threaded=on@9"),
        ("apply", "-o", "threaded=on", "-o", "ring_rx=9"),
        ("verify",),
        ("rollback",),
    ],
)
def test_no_control_characters_come_out(
    odd: SimHost, capsys: pytest.CaptureFixture[str], tmp_path: Path, argv: tuple[str, ...]
) -> None:
    state = ("--state", str(tmp_path)) if argv[0] in ("apply", "verify", "rollback") else ()
    if argv[0] in ("verify", "rollback"):
        assert cli.main(["apply", "-o", "threaded=on", *state]) == 0
        odd.write_napi(8193, {"threaded": "off"})
    cli.main([*argv, *state])
    out, err = capsys.readouterr()
    assert unshown(out) == unshown(err) == []


def test_names_in_a_drop_in() -> None:
    said = linkfile.render(linkfile.Found(), ODD, [f"/etc/systemd/network/{ODD}.link"])
    assert SHOWN in said and unshown(said) == []


def test_names_are_shown_the_same_everywhere() -> None:
    start = host(ODD)
    shown = table.map_text(start, start.links[:1], table.Style(colour=True))
    assert f"\x1b[1m{SHOWN}\x1b[0m: virtio_net" in shown and f"logged in over {SHOWN}" in shown
    assert f"note: {SHOWN} x" in shown
    sample = Sample(0.0, {}, {}, {})
    assert SHOWN in rates.screen(start, start.links, sample, sample)
    assert sanitize.lines("a\x1b\nb") == "a?\nb"


def test_a_picture_is_well_formed() -> None:
    start = host(ODD)
    drawn = ElementTree.fromstring(svg.render(start, start.links))
    texts = [element.text or "" for element in drawn.iter()]
    assert SHOWN in texts and not unshown("".join(texts).replace("\u2026", ""))


class Locale(io.TextIOWrapper):
    """Standard output where nothing beyond ASCII is known."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), "ascii", "strict", write_through=True)

    def written(self) -> bytes:
        found = self.buffer
        assert isinstance(found, io.BytesIO)
        return found.getvalue()


@pytest.mark.parametrize("argv", [("map",), ("plan", "-o", "threaded=on"), ("map", "--svg", "-")])
@pytest.mark.parametrize("name", [SNOW], indirect=True)
def test_an_output_that_knows_no_snowman(
    odd: SimHost, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]
) -> None:
    out = Locale()
    monkeypatch.setattr("sys.stdout", out)
    assert cli.main(argv) == 0
    known = SNOW.encode() if "--svg" in argv else rb"eth\u2603"
    assert known in out.written()


def in_ascii(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the interpreter where the locale knows ASCII only."""
    plain = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    plain["PYTHONPATH"] = str(Path(rxlane.__file__).parents[1])
    argv = [sys.executable, *arguments]
    return subprocess.run(argv, env=plain, capture_output=True, text=True)


def test_profiles_are_found_in_any_locale(tmp_path: Path) -> None:
    """Also by what another one says, which is UTF-8 whatever the locale is."""
    folder, recorded = tmp_path / SNOW, tmp_path / f"{SNOW}.json"
    folder.mkdir()
    recorded.write_text(codec.dumps(simhost.snapshot()))
    (folder / "tuned.conf").write_text(f"[main]\ninclude={folder}/base.conf\n", "utf-8")
    (folder / "base.conf").write_text("[napi]\nthreaded=on\n")
    (folder / "latin.conf").write_bytes(b"[main]\nsummary=\xf6\n")
    argv = ("-m", "rxlane", "plan", "--snapshot", str(recorded), "--profile")
    found = in_ascii(*argv, str(folder))
    assert (found.returncode, found.stderr) == (0, "") and "threaded: off -> on" in found.stdout
    for file, problem in (("latin.conf", ": not UTF-8"), ("none.conf", ": is not there; looked")):
        found = in_ascii(*argv, str(folder / file))
        assert found.returncode == 2 and problem in found.stderr
        assert len(found.stderr.splitlines()) == 1


def test_files_of_a_device_are_found_in_any_locale(tmp_path: Path) -> None:
    """The kernel's names are bytes; the interpreter would spell them as its locale does."""
    folder = os.fsencode(tmp_path) + b"/sys/class/net/" + SNOW.encode()
    os.makedirs(folder + b"/lower_d\xff")
    with open(folder + b"/mtu", "w") as stream:
        stream.write("1500")
    script = (
        "import sys; from rxlane.sysfs import Sysfs; s = Sysfs(sys.argv[1]);"
        "n = s.names('sys/class/net'); p = f'sys/class/net/{n[0]}';"
        "print(ascii([n, s.number(f'{p}/mtu'), s.folders(p), s.exists(p), s.target(p)[-4:]]))"
    )
    found = in_ascii("-c", script, str(tmp_path))
    words = [[SNOW], 1500, ["lower_d\ufffd"], True, SNOW]
    assert (found.stdout, found.stderr) == (f"{ascii(words)}\n", "")


def test_ports_are_called_as_netlink_calls_them(tmp_path: Path) -> None:
    """Half a character in a name could be neither printed nor read back from a recording."""
    folder = os.fsencode(tmp_path) + b"/sys/class/net/br0"
    os.makedirs(folder + b"/lower_d\xff")
    sysfs, port = Sysfs(tmp_path), "d\ufffd"
    assert _below(sysfs, "br0") == (port,) and below(sysfs, "br0") == ["br0", port]
    file = tmp_path / "host.json"
    file.write_text(codec.dumps(host(port)), encoding="utf-8")
    assert request.read_snapshot(str(file)) == host(port)


def test_a_name_given_is_as_netlink_calls_it() -> None:
    assert request.device(os.fsdecode(b"d\xff")) == "d\ufffd"
    assert request.device(os.fsdecode(SNOW.encode())) == SNOW
