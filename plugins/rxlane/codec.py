# SPDX-License-Identifier: GPL-2.0-or-later
"""The model's dataclasses to plain JSON data and back, with every type checked on the way in.

A snapshot file is a door: what a person or another tool put there must give one clear error.
"""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from rxlane.errors import Kind, RxlaneError, printable

_T = TypeVar("_T")


def to_plain(value: Any) -> Any:
    """Return dicts, lists, numbers and strings for a dataclass, a tuple or a plain value."""
    if is_dataclass(value):
        always, later = _fields(type(value))  # type: ignore[arg-type]
        plain = {name: getattr(value, name) for name in always}
        for name, default in later:
            own = getattr(value, name)
            if own != default:
                plain[name] = own
        if not SCALARS.issuperset(map(type, plain.values())):
            plain = {n: o if type(o) in SCALARS else to_plain(o) for n, o in plain.items()}
        return plain
    if isinstance(value, tuple | list):
        return [to_plain(v) for v in value]
    return value


_compact = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def pieces(value: Any) -> Iterator[str]:
    """Yield a dataclass as JSON with sorted keys and no spaces, its lists some items at a time.

    Thousands of items as text or plain data at once would take more memory than all else.
    """
    always, later = _fields(type(value))  # type: ignore[arg-type]
    names = [*always, *(name for name, default in later if getattr(value, name) != default)]
    before = "{"
    for name in sorted(names):
        own = getattr(value, name)
        yield f"{before}{_compact(name)}:"
        before = ","
        if isinstance(own, tuple):
            yield "["
            for start in range(0, len(own), PIECE):
                some = _compact([to_plain(item) for item in own[start : start + PIECE]])
                yield f"{',' if start else ''}{some[1:-1]}"
            yield "]"
        else:
            yield _compact(to_plain(own))
    yield "}"


SCALARS = frozenset((int, str, bool, type(None)))
PIECE = 256  # items


@cache
def _fields(cls: type) -> tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]:
    """Return the fields that are always said, and those of stored.LATER with their defaults."""
    known = fields(cls)
    always = tuple(f.name for f in known if "later" not in f.metadata)
    return always, tuple((f.name, f.default) for f in known if "later" in f.metadata)


@cache
def _hints(cls: type) -> dict[str, Any]:
    """Return each field's type. Looked up once a class: a journal has thousands of entries."""
    return typing.get_type_hints(cls)


@cache
def _plain_types(cls: type) -> dict[str, frozenset[type]]:
    """Return for each field the types of values that need no conversion, () where all do."""
    found = {}
    for name, hint in _hints(cls).items():
        union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        own = typing.get_args(hint) if union else (hint,)
        found[name] = frozenset(own) & SCALARS
    return found


def from_plain(cls: type[_T], data: object, where: str = "", at: int | None = None) -> _T:
    """Return cls built from plain data; FORMAT names the place that does not fit.

    at: where in a list it stands.
    """
    plain = _plain_types(cls)  # type: ignore[arg-type]
    if type(data) is dict and _is_plain(data, plain):
        # Names and values of thousands of settings are few: one of each is kept, not one a setting.
        few = {n: sys.intern(v) if type(v) is str else v for n, v in data.items()}
        try:
            return cls(**few)
        except TypeError:
            pass  # it lacks something, which is told below
    return _from_parts(
        cls, data, (where or cls.__name__.lower()) + ("" if at is None else f"[{at}]")
    )


def _is_plain(data: dict[str, Any], plain: dict[str, frozenset[type]]) -> bool:
    """True when every field is known and needs no conversion."""
    try:
        return all([type(value) in plain[name] for name, value in data.items()])
    except KeyError:
        return False


def _from_parts(cls: type[_T], data: object, where: str) -> _T:
    if not isinstance(data, dict):
        raise _wrong(where, "no object")
    hints, plain = _hints(cls), _plain_types(cls)  # type: ignore[arg-type]
    for name in data:
        if name not in hints:
            raise _wrong(f"{where}.{printable(str(name), 30)}", "unknown field")
    built = {
        n: v if type(v) in plain[n] else _convert(hints[n], v, f"{where}.{n}")
        for n, v in data.items()
    }
    try:
        return cls(**built)
    except TypeError as error:
        missing = str(error).rpartition(": ")[2]
        raise _wrong(where, f"lacks {missing}") from None


def _wrong(where: str, problem: str) -> RxlaneError:
    return RxlaneError(Kind.FORMAT, f"{where}: {problem}")


def _convert(hint: Any, value: object, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(typing.get_args(hint), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(where, "no list")
        of = typing.get_args(hint)
        if len(of) == 2 and of[1] is Ellipsis:
            return _convert_all(of[0], value, where)
        if len(of) != len(value):
            raise _wrong(where, f"{len(value)} parts instead of {len(of)}")
        return tuple(_convert(h, v, where) for h, v in zip(of, value, strict=True))
    if is_dataclass(hint):
        return from_plain(hint, value, where)  # type: ignore[arg-type]
    # bool is an int to isinstance, but true is no CPU number.
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise _wrong(where, f"{type(value).__name__} instead of {hint.__name__}")
    return value


def _convert_all(hint: Any, values: list[object], where: str) -> tuple[Any, ...]:
    if hint in SCALARS and all(type(value) is hint for value in values):
        return tuple(values)
    if not is_dataclass(hint):
        return tuple(_convert(hint, v, f"{where}[{i}]") for i, v in enumerate(values))
    return tuple(from_plain(hint, v, where, i) for i, v in enumerate(values))  # type: ignore[arg-type]


def _convert_union(hints: tuple[Any, ...], value: object, where: str) -> Any:
    if value is None and type(None) in hints:
        return None
    rest = [h for h in hints if h is not type(None)]
    for hint in rest[:-1]:
        if isinstance(value, hint) and not isinstance(value, bool):
            return value
    return _convert(rest[-1], value, where)


def dumps(value: Any) -> str:
    return json.dumps(to_plain(value), indent=1, sort_keys=True) + "\n"


def loads(cls: type[_T], text: str, where: str) -> _T:
    """Parse JSON text into cls; FORMAT for anything that is not exactly that."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RxlaneError(Kind.FORMAT, f"{where}: no JSON: {error}") from None
    return from_plain(cls, data, where)
