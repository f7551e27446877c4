# SPDX-License-Identifier: GPL-2.0-or-later
"""The closed set of errors that rxlane raises.

Every error is one line for the operator: where (section, option, device, queue), what was found
and what to do. The kind, not the message, decides whether a caller may retry or carry on.
"""

from __future__ import annotations

from enum import Enum

LINE = 400  # characters of one error


class Kind(Enum):
    """What went wrong, as far as a caller must tell it apart."""

    OPTION = "bad option"  # the policy's text cannot be understood
    REFUSED = "refused"  # understood, but would endanger the host
    NO_DEVICE = "no such device"
    UNSUPPORTED = "unsupported"  # the kernel or the driver lacks it
    UNMOVABLE = "unmovable"  # the kernel keeps a managed IRQ where it is
    KERNEL = "kernel error"  # the kernel refused a request that it should take
    BUSY = "busy"  # another rxlane holds the journal
    JOURNAL = "journal"  # the journal cannot be read or written
    FORMAT = "malformed data"  # a snapshot file or a netlink message is not what it should be

    @property
    def retry(self) -> bool:
        """True when the same call may succeed a moment later."""
        return self is Kind.BUSY

    @property
    def refused(self) -> bool:
        """True when nothing was attempted because of what was asked."""
        return self in (Kind.OPTION, Kind.REFUSED, Kind.NO_DEVICE)

    @property
    def unsupported(self) -> bool:
        return self is Kind.UNSUPPORTED


class RxlaneError(Exception):
    """One failure, rendered as one line."""

    def __init__(
        self,
        kind: Kind,
        problem: str,
        *,
        section: str | None = None,
        option: str | None = None,
        value: object = None,
        device: str | None = None,
        queue: int | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(problem)
        self.kind = kind
        self.problem = problem
        self.section = section
        self.option = option
        self.value = value
        self.device = device
        self.queue = queue
        self.remedy = remedy

    @property
    def passing(self) -> bool:
        """True when what failed was possible when the host was looked at: a link that goes down or
        away takes interrupts, files and itself from a plan that has them.

        Not where a section asks for a device that nobody has.
        """
        return self.kind in (Kind.KERNEL, Kind.NO_DEVICE, Kind.UNSUPPORTED) and not self.section

    def _where(self) -> str:
        parts = []
        if self.section is not None:
            parts.append(f"[{self.section}]")
        if self.option is not None:
            shown = "" if self.value is None else f"={printable(str(self.value))}"
            parts.append(f"{self.option}{shown}")
        if self.device is not None:
            parts.append(printable(self.device))
        if self.queue is not None:
            parts.append(f"queue {self.queue}")
        return " ".join(parts)

    def __str__(self) -> str:
        where = self._where()
        text = f"{where}: {self.problem}" if where else self.problem
        if self.remedy:
            text = f"{text}; {self.remedy}"
        # The problem may quote what somebody wrote or what a device is called.
        return printable(text, LINE)


def code_of(error: RxlaneError) -> int | None:
    """Return the number of the kernel's error that this one tells of."""
    cause = error.__cause__
    return cause.errno if isinstance(cause, OSError) else None


def with_notes(error: BaseException) -> tuple[str, ...]:
    """Return what to tell of an error: itself, and what was noted of it, such as a failed undo."""
    return (str(error), *getattr(error, "__notes__", ()))


def legible(text: str) -> str:
    """Return a piece of foreign text without control characters and halves of characters."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def counted(number: int, what: str) -> str:
    """Return the number with its word, which takes an s unless it is one: `1 CPU`, `0 CPUs`."""
    return f"{number} {what}{'s' * (number != 1)}"


def printable(text: str, limit: int = 60) -> str:
    """Make a piece of foreign text fit for one line of a log: legible, bounded."""
    safe = legible(text)
    return safe if len(safe) <= limit else f"{safe[: limit - 3]}..."
