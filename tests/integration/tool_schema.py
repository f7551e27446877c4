# SPDX-License-Identifier: GPL-2.0-or-later
"""A JSON value against the few words of JSON Schema that the patched tools' schemas use."""

import json
from typing import Any

from lab.paths import TREE

LINK = TREE / "iproute2-patches" / "tests" / "ip-link.schema.json"
NAPIS = TREE / "ethtool-patches" / "tests" / "show-napi.schema.json"
TYPES = {"object": dict, "array": list, "string": str, "integer": int}
KNOWN = {
    "$schema", "title", "type", "required", "properties", "additionalProperties", "enum",
    "items", "minItems", "minimum",
}  # fmt: skip


def faults(value: Any, schema: dict[str, Any], where: str = "it") -> list[str]:
    """What is wrong with the value, by path; a word of the schema unknown here is an error."""
    if unknown := schema.keys() - KNOWN:
        raise ValueError(f"schema of {where} uses {sorted(unknown)}")
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where}: {value!r} is none of {schema['enum']}"]
    kind = TYPES.get(schema.get("type", ""), object)
    if not isinstance(value, kind) or isinstance(value, bool) and kind is int:
        return [f"{where}: {value!r} is no {schema['type']}"]
    found = []
    if "minimum" in schema and value < schema["minimum"]:
        found.append(f"{where}: {value} is below {schema['minimum']}")
    if isinstance(value, list):
        found += [f"{where}: empty"] if len(value) < schema.get("minItems", 0) else []
        for index, item in enumerate(value):
            found += faults(item, schema.get("items", {}), f"{where}[{index}]")
    if isinstance(value, dict):
        found += object_faults(value, schema, where)
    return found


def object_faults(value: dict[str, Any], schema: dict[str, Any], where: str) -> list[str]:
    properties = schema.get("properties", {})
    found = [f"{where}: no {key}" for key in schema.get("required", []) if key not in value]
    if not schema.get("additionalProperties", True):
        found += [f"{where}: {key} is unknown" for key in value.keys() - properties.keys()]
    for key in value.keys() & properties.keys():
        found += faults(value[key], properties[key], f"{where}.{key}")
    return found


def link_faults(link: dict[str, Any]) -> list[str]:
    """What is wrong with one link of ``ip -json -details -details link``."""
    return faults(link, json.loads(LINK.read_text()), "link")


def napi_faults(devices: list[dict[str, Any]]) -> list[str]:
    """What is wrong with what ``ethtool --json --show-napi`` prints."""
    return faults(devices, json.loads(NAPIS.read_text()), "devices")
