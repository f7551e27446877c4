# SPDX-License-Identifier: GPL-2.0-or-later
"""What bash offers after ``ethtool --show-napi`` and ``--set-napi``, by the patched completion."""

from pathlib import Path

import ethtool_tool as tool
import pytest
from iproute2_space import checked

# Of bash-completion itself just what ethtool's completion calls: the words, and names of devices.
SCRIPT = """
_init_completion() {
    words=("${line[@]}") cword=$((${#line[@]} - 1))
    cur=${words[cword]} prev=${words[cword - 1]}
}
_available_interfaces() { COMPREPLY=($(compgen -W 'eth0 eth1' -- "$cur")); }
source "$1"
shift
line=("$@") COMPREPLY=()
_ethtool
printf '%s\\n' "${COMPREPLY[@]}"
"""
SELECTORS = {"napi", "queue", "queue_mask", "tx-queue"}
SETTINGS = {"defer-hard-irqs", "gro-flush-timeout", "irq-suspend-timeout", "threaded"}


def offered(line: str) -> set[str]:
    """The words offered for the last one of the line, which ends in a blank when that is empty."""
    argv: list[str | Path] = ["bash", "-c", SCRIPT, "bash", tool.completion(), *line.split(" ")]
    return set(checked(argv).split())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ethtool --show-n", {"--show-napi", "--show-nfc"}),
        ("ethtool --set-na", {"--set-napi"}),
        ("ethtool --show-napi ", {"eth0", "eth1"}),
        ("ethtool --show-napi eth0 ", SELECTORS),
        ("ethtool --show-napi eth0 q", {"queue", "queue_mask"}),
        ("ethtool --show-napi eth0 queue ", set()),
        ("ethtool --show-napi eth0 queue 1 ", set()),
        ("ethtool --set-napi eth0 ", SELECTORS | {"all"}),
        ("ethtool --set-napi eth0 all ", SETTINGS),
        ("ethtool --set-napi eth0 queue ", set()),
        ("ethtool --set-napi eth0 queue 1 ", SETTINGS),
        ("ethtool --set-napi eth0 all threaded ", {"busy-poll", "off", "on"}),
        ("ethtool --set-napi eth0 all threaded on ", SETTINGS - {"threaded"}),
        ("ethtool --set-napi eth0 all gro-flush-timeout ", set()),
        ("ethtool --set-napi eth0 all threaded on defer-hard-irqs 2 g", {"gro-flush-timeout"}),
    ],
)
def test_completion(line: str, expected: set[str]) -> None:
    assert offered(line) == expected
