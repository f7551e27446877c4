# SPDX-License-Identifier: GPL-2.0-or-later
"""What packages leave in a guest and what they may have touched."""

from conftest import Host

# What changes with any package or any TuneD profile, none of it ours: dpkg's and apt's own books,
# caches, logs, run-time folders, and the three files in which TuneD notes the active profile.
FOREIGN = (
    *("/var/lib/dpkg", "/var/lib/apt", "/var/cache", "/var/log", "/var/tmp", "/tmp", "/root"),
    *("/var/lib/systemd", "/etc/tuned/active_profile", "/etc/tuned/profile_mode"),
    "/etc/tuned/post_loaded_profile",
)


def file_system(host: Host) -> set[str]:
    """A line a file of the guest: type, mode, owner, size and target; sums of what is in /etc."""
    prune: list[str] = []
    for path in FOREIGN:
        prune += ["-path", path, "-o"]
    looks = ["-type", "d", "-printf", "%p %M %U:%G\n", "-o", "-printf", "%p %M %U:%G %s %l\n"]
    found = host.run("find", "/", "-xdev", "(", *prune[:-1], ")", "-prune", "-o", *looks)
    etc = host.run(
        "find",
        "/etc",
        "-xdev",
        "(",
        *prune[:-1],
        ")",
        "-prune",
        "-o",
        "-type",
        "f",
        "-exec",
        "sha256sum",
        "{}",
        "+",
    )
    return {*found.stdout.splitlines(), *etc.stdout.splitlines()}


def threads(host: Host) -> dict[str, str]:
    """Name by PID of the NAPI threads: a thread that was started anew has another PID."""
    rows = [
        line.split(None, 1) for line in host.run("ps", "-e", "-o", "pid=,comm=").stdout.split("\n")
    ]
    return {row[0]: row[1] for row in rows if len(row) == 2 and row[1].startswith("napi/")}
