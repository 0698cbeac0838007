from __future__ import annotations

from tools.settings_table import README, rows, table

MAX_SETTINGS = 40


def test_the_readme_shows_the_settings_of_today() -> None:
    assert table() in README.read_text(), "run: make docs-settings"


def test_every_setting_says_what_it_is() -> None:
    assert not [row for row in rows() if not row[3]]


def test_there_are_few() -> None:
    assert len({name for _, name, _, _ in rows()}) <= MAX_SETTINGS
