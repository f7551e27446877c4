# SPDX-License-Identifier: GPL-2.0-or-later
"""The library netdev-requests.c in the environment of a tested tool: what it asks, and mishaps."""

from pathlib import Path

from iproute2_space import checked

from lab.cache import built, digest
from lab.progress import tool

SOURCE = Path(__file__).with_name("netdev-requests.c")
NAPI_GET, QUEUE_GET, NAPI_SET = "11", "10", "14"  # commands of linux/netdev.h


def library() -> Path:
    def compile_it(folder: Path) -> None:
        tool(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", SOURCE,
              "-o", folder / "netdev-requests.so"])  # fmt: skip

    key = digest(["preload", SOURCE.read_text()])
    return built("preload", key, compile_it) / "netdev-requests.so"


def preloaded(program: Path, **variables: str) -> dict[str, str]:
    """Variables with the library preloaded; AddressSanitizer's run-time must come before it."""
    libraries = checked(["ldd", program]).splitlines()
    first = [line.split()[2] for line in libraries if "libasan" in line]
    return {"LD_PRELOAD": " ".join([*first, str(library())]), **variables}
