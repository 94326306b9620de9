"""The errors page covers every error, and its commands exit with the documented output."""

from __future__ import annotations

import builtins
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import errors
from scaler.cli import run_command
from tests.examples.blocks import ROOT, blocks_of

PAGE = "docs/errors.md"
OF_OTHERS = {"OutOfMemoryError", "RayTaskError", "WorkerCrashedError", "TerminatedWorkerError"}
"""Errors of Ray and joblib, whose users find the equivalents here."""
CLASSES = [name for name, value in vars(errors).items() if inspect.isclass(value)]


def commands() -> Iterator[tuple[str, str]]:
    """Yield each command on the page with its documented output."""
    for block in blocks_of(PAGE):
        if block.language == "text":
            for shown in block.text.removeprefix("$ ").split("\n$ "):
                command, _, said = shown.partition("\n")
                yield command, f"{said.rstrip()}\n"


def test_every_error_is_documented() -> None:
    page = (ROOT / PAGE).read_text()
    assert [name for name in CLASSES if f"`{name}`" not in page] == []


def test_no_page_documents_unknown_errors() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {name for page in pages for name in re.findall(r"`(\w+Error)`", page.read_text())}
    assert named <= {*CLASSES, *vars(builtins), "CancelledError", *OF_OTHERS}


@pytest.mark.parametrize(("command", "said"), list(commands()))
def test_invalid_command_exits_with_2_and_the_documented_message(
    command: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *arguments = shlex.split(command)
    assert run_command(name, arguments) == 2
    assert capfd.readouterr() == ("", said)
