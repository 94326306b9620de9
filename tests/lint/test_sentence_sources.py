"""Sentences use one helper for counts, in Python and on the page: "1 tasks" must not occur."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SCALER = Path(__file__).parents[2] / "scaler"
NOUNS = (
    "attempt attachment byte call character client core cpu day descriptor entry error failure file function group "
    "hour id item job key line manager message minute node object page part peer process processor queue record report "
    "request result retry row second segment session slot step stream table task thread time unit upload worker word"
)
PLURALS = "|".join(f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}e?s" for noun in NOUNS.split())
COUNTED = re.compile(rf"^ (?:(?:other|more|idle|running|worker|cancelled|unfinished) )?(?:{PLURALS})\b(?!=)")
IN_LOGS = re.compile(rf"%,?[dsg] (?:(?:other|more|idle|running|worker|cancelled) )?(?:{PLURALS})\b(?!=)")
ABOVE_ONE = re.compile(r"more than|larger than|MAX_|AWS allows|ECS allows|while other tasks were accepted")
"""In errors about numbers above a limit."""
CONSTANT_LENGTH = "{length} bytes"
"""Of ids."""


@cache
def sources() -> list[tuple[Path, ast.AST]]:
    return list(nodes())


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted(SCALER.rglob("*.py")):
        # Code for tests, and assertions about the core's state, are not sentences for users.
        if "testing" not in path.parts:
            for node in ast.walk(ast.parse(path.read_text())):
                yield path, node


def is_constant(value: ast.expr) -> bool:
    name = value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
    return name.isupper()


def test_counts_never_precede_a_plural_without_the_helper() -> None:
    wrong = []
    for path, node in sources():
        if isinstance(node, ast.JoinedStr):
            text = ast.unparse(node)
            pairs = zip(node.values, node.values[1:], strict=False)
            if any(
                isinstance(left, ast.FormattedValue)
                and isinstance(right, ast.Constant)
                and COUNTED.match(str(right.value))
                and not is_constant(left.value)
                for left, right in pairs
            ) and not (ABOVE_ONE.search(text) or CONSTANT_LENGTH in text):
                wrong.append(f"{path.relative_to(SCALER)}:{node.lineno}: {text}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and IN_LOGS.search(node.value):
            wrong.append(f"{path.relative_to(SCALER)}:{node.lineno}: {node.value}")
    assert not wrong, "\n".join(["use counted() of scaler.grammar:", *wrong])


def test_no_article_precedes_a_name_that_may_begin_with_a_vowel() -> None:
    wrong = [
        f"{path.relative_to(SCALER)}:{node.lineno}: {ast.unparse(node)}"
        for path, node in sources()
        if isinstance(node, ast.JoinedStr) and re.search(r"\b[aA]n? \{(?!wanted\})", ast.unparse(node))
    ]
    assert not wrong, "\n".join(wrong)


def test_page_counts_never_precede_a_plural_without_the_helper() -> None:
    pages = [path for path in (SCALER / "monitor/web/static").glob("*.js") if path.name != "format.js"]
    wrong = [
        f"{path.name}: {found[0]}"
        for path in pages
        for found in re.finditer(rf"\$\{{(?:count|short)\([^`}}]*\}} (?:{PLURALS})\b", path.read_text())
    ]
    assert len(pages) > 10
    assert not wrong, "\n".join(["use counted() of format.js:", *wrong])


def test_every_noun_agrees_with_its_count() -> None:
    wrong = [
        f"{path.relative_to(SCALER)}:{node.lineno}"
        for path, node in sources()
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\w\(s\)", node.value)
    ]
    assert wrong == []
