# SPDX-License-Identifier: GPL-2.0-or-later
"""tuned-profiles/settings.md says what the profiles say, and every setting has a reason."""

import pytest

from unit import settings_table


def test_table_is_up_to_date() -> None:
    found = settings_table.TABLE.read_text()
    assert found == settings_table.document(), "run `make settings`"


@pytest.mark.parametrize("name", settings_table.NAMES)
def test_every_setting_has_a_reason(name: str) -> None:
    rows = settings_table.rows(name, (settings_table.FOLDER / name / "tuned.conf").read_text())
    assert len(rows) > 5
    assert [row.option for row in rows if not row.reason] == []


def test_every_profile_has_a_table() -> None:
    folders = {path.parent.name for path in settings_table.FOLDER.glob("*/tuned.conf")}
    assert folders == set(settings_table.NAMES)


def test_a_paragraph_belongs_to_the_comment_above_it() -> None:
    variable = "a=${f:rxlane_variable:p:a:1}"
    options = "# Both, so.\n# Source: s.\nfirst=${a}\nsecond=2\n"
    text = f"[variables]\n{variable}\n\n[napi]\n{options}"
    first, second = settings_table.rows("p", text)
    assert (first.section, first.value, first.variable) == ("napi", "1", "a")
    assert (second.value, second.variable) == ("2", "")
    assert first.reason == second.reason == "Both, so. Source: s."
