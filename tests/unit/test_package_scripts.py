# SPDX-License-Identifier: GPL-2.0-or-later
"""What the scripts of the packages do when dpkg installs, upgrades, removes and purges them."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rxlane
from rxlane import cli
from rxlane.journal import Store
from rxlane.plan import TUNED, Entry, Journal
from unit.packagefiles import DEBIAN, PACKAGES, debian, installed_patterns


class Host:
    """A host in a folder: TuneD's profiles, its active profile, and commands that only log."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "log"
        for folder in ("etc/tuned/profiles", "usr/lib/tuned/profiles", "var/lib/rxlane", "bin",
                       "usr/libexec/rxlane", "usr/bin", "proc/sys/kernel/random"):  # fmt: skip
            (root / folder).mkdir(parents=True)
        off = root / "usr/libexec/rxlane/profile-off"
        off.write_text(self.below((DEBIAN.parent / "profile-off").read_text()))
        off.chmod(0o755)
        for name in ("rxlane", "systemctl"):
            self.command(name, 0)
        # As on a host without one, whatever this machine has.
        (root / "bin/policy-rc.d").write_text("#!/bin/sh\n")
        (root / "bin/policy-rc.d").chmod(0o755)
        self.command("tuned-adm", 0, f"rm -f {root}/etc/tuned/*_profile")
        (root / "proc/sys/kernel/random/boot_id").write_text("this\n")
        self.python()

    def python(self) -> None:
        """The interpreter of the host, which has the library and takes this folder for the root."""
        root = str(self.root)
        code = f"import sys, rxlane.tuned.tuned_profiles as asked; sys.exit(asked.main({root!r}))"
        library = shlex.quote(str(Path(rxlane.__file__).parents[1]))
        path = self.root / "usr/bin/python3"
        path.write_text(f"""#!/bin/sh
[ "$*" = "-IB -m rxlane.tuned.tuned_profiles" ] || exit 99
PYTHONPATH={library} exec {shlex.quote(sys.executable)} -c {shlex.quote(code)}
""")
        path.chmod(0o755)

    def below(self, text: str) -> str:
        """The script with its absolute paths below this host."""
        for top in ("/etc/tuned", "/usr/lib/tuned", "/var/lib/rxlane", "/usr/libexec/rxlane",
                    "/usr/bin/python3", "/run/systemd", "/run/udev", "/run/rxlane"):  # fmt: skip
            text = text.replace(top, str(self.root) + top)
        return text

    def command(self, name: str, code: int, does: str = ":") -> None:
        path = self.root / "bin" / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.log}\n{does}\nexit {code}\n')
        path.chmod(0o755)

    def profile(self, name: str, text: str, place: str = "usr/lib") -> None:
        folder = self.root / place / "tuned" / "profiles" / name
        folder.mkdir()
        (folder / "tuned.conf").write_text(text)

    def activate(self, names: str, file: str = "active_profile") -> None:
        (self.root / "etc" / "tuned" / file).write_text(names + "\n")

    def wrote(self, after: int | None = 1, owner: str = TUNED, boot: str = "this") -> None:
        """Have a journal with a setting of eth0's."""
        entry = Entry("eth0", 2, 0, "threaded", 0, after)
        Store(self.root / "var/lib/rxlane").save(Journal(boot, (entry,), owner))

    def journal(self) -> None:
        (self.root / "var" / "lib" / "rxlane" / "journal.json").write_text("{}")

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"}

    def profile_off(self) -> tuple[int, str]:
        """Run what both packages' scripts call; its exit status and complaints."""
        done = subprocess.run(
            [self.root / "usr/libexec/rxlane/profile-off"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    def script(self, name: str, *arguments: str, **variables: str) -> list[str]:
        """Run a maintainer script on this host; what it called."""
        text = self.below((DEBIAN / name).read_text())
        env = {**self.environment, **variables}
        subprocess.run(["sh", "-ec", text, name, *arguments], check=True, env=env)
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path)
    made.profile("net-low-latency", "[main]\nsummary=low\n\n[napi]\nthreaded=on\n")
    made.profile("balanced", "[main]\nsummary=balanced\n[cpu]\ngovernor=schedutil\n")
    return made


@pytest.mark.parametrize(
    "active", ["net-low-latency", "balanced net-low-latency", "gone mine", "deep", "if-there"]
)
def test_removal_switches_off_a_profile_in_use(host: Host, active: str) -> None:
    host.profile("mine", "[main]\ninclude=balanced, net-low-latency\n", "etc")
    host.profile("deep", "[main]\ninclude = mine\n", "etc")
    host.profile("if-there", "[main]\ninclude=-net-low-latency\n", "etc")
    host.activate(active)
    assert host.script("tuned-profiles-rxlane.prerm", "remove") == ["tuned-adm off"]


@pytest.mark.parametrize("kind", ["napi", "irq_layout", "flow_steering"])
@pytest.mark.parametrize(
    "text",
    [
        "[{}]\n",
        "[storage_lane]\ntype = {} \n",
        "[storage_lane]\ntype={} # comment\n",
    ],
)
def test_removal_knows_every_kind_of_section(host: Host, kind: str, text: str) -> None:
    host.profile("typed", text.format(kind), "etc")
    host.activate("typed")
    assert host.script("tuned-profiles-rxlane.prerm", "remove") == ["tuned-adm off"]


def test_removal_knows_a_profile_that_is_loaded_after_others(host: Host) -> None:
    host.activate("balanced")
    host.activate("net-low-latency", "post_loaded_profile")
    assert host.script("tuned-profiles-rxlane.prerm", "remove") == ["tuned-adm off"]


# By a variable; gone, as one that was renamed; changed since TuneD read it, or laid out by D-Bus.
@pytest.mark.parametrize("active", ["chosen", "gone", "balanced", ""])
def test_what_tuned_wrote_is_its_own_whatever_its_profile_says(host: Host, active: str) -> None:
    host.profile("chosen", "[variables]\nx=net-low-latency\n[main]\ninclude=${x}\n", "etc")
    host.activate(active)
    host.wrote()
    assert host.script("tuned-profiles-rxlane.prerm", "remove") == ["tuned-adm off"]
    host.command("tuned-adm", 1)
    calls = host.script("tuned-profiles-rxlane.prerm", "remove")
    assert calls[1:] == ["tuned-adm off", "rxlane rollback --tuned"]


@pytest.mark.parametrize(
    "written",
    [
        {"owner": ""},  # an operator's
        {"boot": "before"},
        {"after": None},  # waits for its device since TuneD took another profile
    ],
)
def test_removal_leaves_what_tuned_does_not_want(host: Host, written: dict[str, Any]) -> None:
    host.activate("balanced")
    host.wrote(**written)
    assert host.script("tuned-profiles-rxlane.prerm", "remove") == []


def test_what_cannot_be_found_out_is_switched_off(host: Host) -> None:
    host.activate("balanced")
    host.journal()  # a damaged one
    assert host.script("tuned-profiles-rxlane.prerm", "remove") == ["tuned-adm off"]
    host.log.unlink()
    (host.root / "usr/bin/python3").unlink()
    assert host.script("tuned-profiles-rxlane.prerm", "remove") == ["tuned-adm off"]


@pytest.mark.parametrize("active", ["", "balanced", "gone", "circle"])
def test_removal_leaves_other_profiles_alone(host: Host, active: str) -> None:
    host.profile("circle", "[main]\ninclude=circle\n", "etc")
    host.activate(active)
    assert host.script("tuned-profiles-rxlane.prerm", "remove") == []


def test_user_profile_shadows_ours(host: Host) -> None:
    """TuneD takes /etc before /usr/lib: a net-low-latency of the user's own may lack napi."""
    host.profile("net-low-latency", "[main]\nsummary=own\n", "etc")
    host.activate("net-low-latency")
    assert host.script("tuned-profiles-rxlane.prerm", "remove") == []


def test_journal_undoes_what_tuned_cannot(host: Host) -> None:
    host.command("tuned-adm", 1)
    host.activate("net-low-latency")
    host.journal()
    calls = host.script("tuned-profiles-rxlane.prerm", "remove")
    assert calls == ["tuned-adm off", "rxlane rollback --tuned"]


@pytest.mark.parametrize("left", [True, False])
def test_what_is_left_is_told(host: Host, left: bool) -> None:
    """As where another rxlane had the lock when TuneD switched the profile off."""
    host.activate("net-low-latency")
    host.wrote(after=1 if left else None)
    status, said = host.profile_off()
    assert status == int(left) and ("rxlane rollback" in said) == left
    assert said.count("\n") == int(left)
    assert host.script("tuned-profiles-rxlane.prerm", "remove")[0] == "tuned-adm off"


def test_tuned_brings_back_what_a_dead_one_left() -> None:
    """The drop-in is installed, and its command line is one that rxlane takes."""
    assert "debian/50-rxlane.conf" in installed_patterns("install")
    line = re.search(r"^ExecStartPre=-/usr/bin/rxlane (.*)$", debian("50-rxlane.conf"), re.M)
    assert line is not None
    assert cli._parsed(line[1].split()).orphaned


def test_boot_unit_runs_before_tuned() -> None:
    text = debian("rxlane.rxlane-boot.service")
    line = re.search(r"^ExecStart=/usr/bin/rxlane (.*)$", text, re.M)
    assert line is not None and cli._parsed(line[1].split()).boot
    assert "Before=tuned.service" in text and "--name=rxlane-boot" in debian("rules")


@pytest.mark.parametrize("script", ["tuned-profiles-rxlane.prerm", "rxlane.prerm"])
def test_upgrade_disturbs_nothing(host: Host, script: str) -> None:
    host.activate("net-low-latency")
    host.journal()
    assert host.script(script, "upgrade", "0.2.0") == []


@pytest.mark.parametrize("code", [0, 1])
def test_removal_of_the_command_rolls_back(host: Host, code: int) -> None:
    """A rollback that fails is told and does not keep the package on the host."""
    host.command("rxlane", code)
    assert host.script("rxlane.prerm", "remove") == []
    host.journal()
    assert host.script("rxlane.prerm", "remove") == ["rxlane rollback"]


def test_only_an_apply_of_this_boot_keeps_an_upgrade_back(host: Host) -> None:
    record = host.root / "var/lib/rxlane/confirm.json"
    host.script("unconfirmed.sh", "upgrade", "0.1.0")
    record.write_text('{"boot_id": "0f0f0f0f-0000-4000-8000-000000000000"}')
    host.script("unconfirmed.sh", "upgrade", "0.1.0")
    boot = _this_boot()
    record.write_text(json.dumps({"boot_id": boot}))
    host.script("unconfirmed.sh", "install")
    with pytest.raises(subprocess.CalledProcessError):
        host.script("unconfirmed.sh", "upgrade", "0.1.0")
    host.command("cat", 1)  # as in a chroot without /proc
    host.script("unconfirmed.sh", "upgrade", "0.1.0")


def _this_boot() -> str:
    """As the scripts see it: they read this machine's."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_every_package_with_a_part_in_an_apply_keeps_back() -> None:
    """All but the series, which touch nothing."""
    named = re.search(r"^UNCONFIRMED := (.*)$", debian("rules"), re.MULTILINE)
    assert named is not None and tuple(named[1].split()) == PACKAGES[:3]


RELOAD = "systemctl daemon-reload"


def test_installation_starts_services_that_udev_could_not(host: Host) -> None:
    (host.root / "run/systemd/system").mkdir(parents=True)
    database = host.root / "run/udev/data"
    assert installed(host, "") == []
    database.mkdir(parents=True)
    for name, text in {
        "n2": "E:NAPI_RPS=off\n",
        "n12": "E:ID_PATH=x\n",
        "b8:0": "E:NAPI_RPS=off",
    }.items():
        (database / name).write_text(text)
    host.script("rxlane.preinst", "upgrade", "0.1.0", "0.2.0")
    assert configured(host, "0.1.0") == [], "an upgrade"
    started = ["systemctl start --no-block rxlane-link@2.service"]
    assert installed(host, "") == started
    # Removed and not purged, then installed.
    assert installed(host, "0.1.0") == started * 2
    assert configured(host, "0.2.0") == started * 2, "an upgrade"


@pytest.mark.parametrize(("says", "starts"), [(0, 1), (104, 1), (101, 0), (1, 0)])
def test_an_administrator_who_lets_nothing_start(host: Host, says: int, starts: int) -> None:
    (host.root / "run/systemd/system").mkdir(parents=True)
    (host.root / "run/udev/data").mkdir(parents=True)
    (host.root / "run/udev/data/n2").write_text("E:NAPI_RPS=off\n")
    host.command("policy-rc.d", says)
    unit = "rxlane-link@2.service"
    started = [f"systemctl start --no-block {unit}"] * starts
    assert installed(host, "") == [f"policy-rc.d {unit} start", *started]


def installed(host: Host, before: str) -> list[str]:
    """Install the command; before: the version that dpkg remembers. What all scripts called, but
    that systemd reads its units again.
    """
    host.script("rxlane.preinst", "install", *([before, "0.2.0"] if before else []))
    return configured(host, before)


def configured(host: Host, before: str) -> list[str]:
    called = host.script("rxlane.postinst", "configure", before)
    assert (RELOAD in called) == (host.root / "run/systemd/system").exists()
    return [one for one in called if one != RELOAD]


def test_without_systemd_nothing_is_started(host: Host) -> None:
    (host.root / "run/udev/data").mkdir(parents=True)
    (host.root / "run/udev/data/n2").write_text("E:NAPI_RPS=off\n")
    assert installed(host, "") == []
    assert {path.name for path in (host.root / "run").iterdir()} == {"udev"}


def test_removal_stops_the_services_of_links_first(host: Host) -> None:
    (host.root / "run/systemd/system").mkdir(parents=True)
    host.journal()
    calls = host.script("rxlane.prerm", "remove")
    assert calls == ["systemctl stop rxlane-link@*.service", "rxlane rollback"]


def test_only_purge_drops_the_journal(host: Host) -> None:
    host.journal()
    host.script("rxlane.postrm", "remove")
    assert (host.root / "var/lib/rxlane/journal.json").exists()
    host.script("rxlane.postrm", "purge")
    assert not (host.root / "var/lib/rxlane").exists()


def test_purge_keeps_originals_that_were_not_put_back(
    host: Host, capfd: pytest.CaptureFixture[str]
) -> None:
    """As of an interface that was down at the rollback before; the command can be had again."""
    host.wrote(boot=_this_boot())
    journal = (host.root / "var/lib/rxlane/journal.json").read_bytes()
    host.script("rxlane.postrm", "remove")
    assert capfd.readouterr().err == ""
    host.script("rxlane.postrm", "purge")
    assert (host.root / "var/lib/rxlane/journal.json").read_bytes() == journal
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert f"{host.root}/var/lib/rxlane stays" in said and "`rxlane rollback`" in said


@pytest.mark.parametrize("left", ["nothing", "another boot's", "what cannot be told"])
def test_purge_drops_what_is_of_no_use(
    host: Host, left: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if left != "nothing":
        host.wrote(boot="before" if left == "another boot's" else _this_boot())
    if left == "what cannot be told":
        host.command("cat", 1)  # as in a chroot without /proc
    host.script("rxlane.postrm", "purge")
    assert not (host.root / "var/lib/rxlane").exists()
    assert capfd.readouterr().err == ""


def test_purge_from_an_image_leaves_the_host_alone(host: Host) -> None:
    """As by dpkg --root --force-script-chrootless."""
    image = host.root / "image"
    state = Path(f"{image}{host.root}/var/lib/rxlane")
    state.mkdir(parents=True)
    host.wrote(boot=_this_boot())
    host.script("rxlane.postrm", "purge", DPKG_ROOT=str(image))
    assert (host.root / "var/lib/rxlane/journal.json").exists()
    assert not state.exists()
