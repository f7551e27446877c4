# SPDX-License-Identifier: GPL-2.0-or-later
"""A guest whose interfaces are laid out by their .link files or by udev's rules."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from conftest import Host, Settings, differing

PATIENCE = 60  # seconds, emulated on a busy machine


@dataclass
class Linked:
    """before: the settings of a boot without our files."""

    host: Host
    nic: str
    other: str
    before: Settings

    def own(self, device: str, settings: Settings | None = None) -> Settings:
        found = self.host.settings() if settings is None else settings
        return {key: value for key, value in found.items() if key.startswith(f"{device}/")}

    def until(self, what: Callable[[], object]) -> object:
        """What it says once it says something, or at the end of PATIENCE."""
        end = time.monotonic() + PATIENCE
        while not (said := what()) and time.monotonic() < end:
            time.sleep(0.3)
        return said

    def stands(self, wanted: Settings) -> bool:
        """All of these settings of one device come to be."""
        device = next(iter(wanted)).partition("/")[0]
        if self.until(lambda: self.own(device) == wanted):
            return True
        print(differing(wanted, self.own(device)))
        return False

    def unit(self, device: str) -> str:
        index = self.host.run("cat", f"/sys/class/net/{device}/ifindex").stdout.strip()
        return f"rxlane-link@{index}.service"

    def property(self, unit: str, name: str) -> str:
        said: str = self.host.run("systemctl", "show", "-P", name, unit).stdout.strip()
        return said

    def threaded(self, device: str) -> int:
        said = self.host.run("rxlane", "map", "--json", device, check=False)
        if said.rc != 0:
            return 0
        lanes = json.loads(said.stdout)["devices"][0]["lanes"]
        return sum(lane["mode"] == "on" for lane in lanes)
