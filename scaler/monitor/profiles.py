"""Profiles as text. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scaler.stack_profile import StackProfile, read_document

MOST_FRAMES = 30


def functions_text(rows: list[list[Any]]) -> str:
    if not rows:
        return "there are no samples yet: tasks have run too shortly, or profile_interval_seconds is 0"
    lines = [f"{microseconds / 1e6:10.2f} s  {name}  {frame}" for name, _, microseconds, frame in rows]
    return "\n".join([f"{'time':>12}  function  hottest frame", *lines])


def hottest_frames(document: Mapping[str, Any]) -> dict[str, str]:
    return {name: frame for name, _, _, frame in document.get("functions", ())}


def profile_text(document: Mapping[str, Any]) -> str:
    if not document["of"]:
        return "there are no samples of this task: it has run too shortly, or profile_interval_seconds is 0"
    table = read_document(document).table(str(document["name"]), MOST_FRAMES)
    return table if document["of"] == "task" else f"no samples of its own, but of all tasks of its function\n{table}"


def written(stacks: StackProfile, name: str, output: str) -> str:
    return json.dumps(stacks.speedscope(name)) if output.endswith(".json") else stacks.collapsed()
