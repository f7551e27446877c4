# SPDX-License-Identifier: GPL-2.0-or-later
"""Other programs for the table of costs: stock TuneD of two versions, and netutils-linux.

TuneD is unpacked from its package, beside the Python modules of this machine's release, and runs in
the namespace with an /etc and a /run of its own: nothing of the machine's is touched. Its [sysfs]
and [scheduler] plugins are what it has for threads of NAPIs; its [net] passes virtual devices by.
netutils-linux sets RPS, and runs once for every device.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from lab import apt
from lab.paths import BUILD
from lab.progress import StepFailed

TUNED = ("2.25.1-1", "2.27.0-1")
NETUTILS = "2.7.11"
# What TuneD needs of Python, and what that needs.
MODULES = (
    *("python3-dbus", "python3-gi", "python3-pyudev", "python3-linux-procfs", "python3-six"),
    *("python3-decorator", "libgirepository-1.0-1", "gir1.2-glib-2.0"),
)
PROFILE = r"""
[sysfs]
/sys/class/net/v*/threaded=1
/sys/class/net/v*/queues/rx-*/rps_cpus=3
[scheduler]
runtime=0
group.lanes=0:b:0:0x1:^\[?napi/v[ab]
"""
APPLIED = "static tuning from profile"
PATIENCE = 300.0  # seconds


class NoPeer(Exception):
    """This program cannot run here; the message says why."""


def _release() -> str:
    words = Path("/etc/os-release").read_text().splitlines()
    return next((w.partition("=")[2] for w in words if w.startswith("VERSION_CODENAME=")), "")


def _package(name: str, version: str | None) -> Path:
    if version is None:
        offers = [own for own, suite in apt.offered(name) if suite == _release()]
        if not offers:
            raise NoPeer(f"{_release() or 'this release'} offers no {name}")
        version = offers[0]
    return apt.download(name, apt.choose(name, version))


def tuned(version: str) -> Path:
    """Return the folder, by the version's name, in which TuneD and its modules are unpacked.

    A version that is served no more gives way to the newest.
    """
    try:
        version = apt.choose("tuned", version)
        root = BUILD / "bench" / f"tuned-{version}"
        wanted = {"tuned": version, **dict.fromkeys(MODULES)}
        for name, own in wanted.items():
            done = root / f".{name}"
            if not done.exists():
                deb = _package(name, own)
                root.mkdir(parents=True, exist_ok=True)
                subprocess.run(["dpkg-deb", "-x", str(deb), str(root)], check=True)
                done.touch()
    except (apt.NoPackage, StepFailed, OSError, subprocess.CalledProcessError) as error:
        raise NoPeer(str(error).strip() or type(error).__name__) from error
    return root


def _script(root: Path, folder: Path) -> str:
    """Return the shell's part: an own /etc and /run, and TuneD in the foreground."""
    libraries = root / f"usr/lib/{os.uname().machine}-linux-gnu"
    paths = {
        "PYTHONPATH": root / "usr/lib/python3/dist-packages",
        "LD_LIBRARY_PATH": libraries,
        "GI_TYPELIB_PATH": libraries / "girepository-1.0",
    }
    etc = f"lowerdir=/etc,upperdir={folder}/etc,workdir={folder}/work"
    argv = ["/usr/bin/python3", f"{root}/usr/sbin/tuned", "--no-dbus", "--no-socket"]
    argv += ["-p", "lanes", "--log", f"{folder}/log"]
    lines = [
        "set -e",
        "mount -t tmpfs none /run",
        f"mount -t overlay none -o {shlex.quote(etc)} /etc",
    ]
    lines += [f"export {name}={shlex.quote(str(path))}" for name, path in paths.items()]
    return "\n".join([*lines, f"exec {shlex.join(argv)}"])


def run_tuned(space: str, root: Path, folder: Path) -> tuple[float, float]:
    """Return how long TuneD takes in the namespace to apply its profile, and to end and undo it.

    folder: empty, on a file system that an overlay may have its layers on.
    """
    profile = folder / "etc" / "tuned" / "profiles" / "lanes"
    profile.mkdir(parents=True)
    (folder / "work").mkdir()
    subprocess.run(["cp", "-r", f"{root}/etc/tuned/.", f"{folder}/etc/tuned"], check=True)
    (profile / "tuned.conf").write_text(PROFILE)
    begin = time.monotonic()
    argv = ["ip", "netns", "exec", space, "sh", "-c", _script(root, folder)]
    with (folder / "words").open("w") as words:
        own = subprocess.Popen(argv, stdout=words, stderr=words)
    try:
        _wait(own, folder, begin)
        applied = time.monotonic() - begin
        _check()
        begin = time.monotonic()
        own.send_signal(signal.SIGTERM)
        own.wait(PATIENCE)
        return applied, time.monotonic() - begin
    finally:
        own.kill()
        own.wait()


def _wait(own: "subprocess.Popen[bytes]", folder: Path, begin: float) -> None:
    log = folder / "log"
    while own.poll() is None and time.monotonic() - begin < PATIENCE:
        if log.exists() and APPLIED in log.read_text():
            return
        time.sleep(0.01)
    said = (folder / "words").read_text().strip().splitlines()
    raise NoPeer(f"TuneD did not apply its profile: {said[-1] if said else 'no word'}")


def _check() -> None:
    """See that the threads are there and have their class: a row must not be of nothing."""
    found = subprocess.run(["pgrep", "^napi/va0"], capture_output=True, text=True, check=False)
    pids = [int(pid) for pid in found.stdout.split()]
    if not pids or any(os.sched_getscheduler(pid) != os.SCHED_BATCH for pid in pids):
        raise NoPeer("TuneD applied its profile and the threads are not as it says")


def netutils() -> Path:
    """Return autorps of netutils-linux, installed by pip for the bench alone."""
    home = BUILD / "bench" / f"netutils-{NETUTILS}"
    program = home / "bin" / "autorps"
    if program.exists():
        return program
    pip = [str(home / "bin" / "pip"), "install", "--quiet", f"netutils-linux=={NETUTILS}"]
    for argv in ([sys.executable, "-m", "venv", str(home)], pip):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise NoPeer(said[-1] if said else f"{argv[-1]} failed")
    return program
