"""Display of objects in a notebook."""

from __future__ import annotations

from scaler.notebook import MAX_CHARACTERS, short, table


def test_values_are_never_parsed_as_html() -> None:
    shown = table("<b>", {"<i>": '<img src=x onerror="alert(1)">', "quote": "'\""})
    assert "<img" not in shown
    assert "<i>" not in shown
    assert "<b>" not in shown
    assert "&lt;img src=x onerror=&quot;alert(1)&quot;&gt;" in shown
    assert "&#x27;&quot;" in shown


def test_long_texts_are_truncated_and_control_characters_escaped() -> None:
    assert short("a" * 5, 5) == "aaaaa"
    assert short("a" * 6, 5) == "aaaa…"
    assert short("\x1b[31m\n") == "\\x1b[31m\\n"
    assert len(table("t", {"long": "x" * 1_000_000})) < MAX_CHARACTERS + 500


def test_rows_without_a_value_are_omitted() -> None:
    shown = table("t", {"none": None, "empty": "", "zero": 0})
    assert "none" not in shown
    assert "empty" not in shown
    assert "zero" in shown
