"""Stories of the scheduler core as readable text files: commands, and the core's output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.story import Story
from tests.scenarios.transcript import Block, Command, read

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_task_history_is_displayed_as_written(path: Path, rewrite: bool) -> None:
    story = Story()
    written = path.read_text()
    told = "\n".join(str(Block(block.comments, block.command, story.run(block.command))) for block in read(written))
    if rewrite:
        path.write_text(told)
    else:
        assert told.splitlines() == written.splitlines()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("show\nnobody is here\n", "line 1"),
        ("sing\n----\n", "no command"),
        ("worker w colour=red\n----\n", "no option colour"),
    ],
)
def test_invalid_transcript_or_command_is_an_error(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        tell(text)


def tell(text: str) -> list[str]:
    story = Story()
    return [line for block in read(text) for line in story.run(block.command)]


def test_rewritten_transcript_keeps_its_comments_and_reads_the_same() -> None:
    text = "# a comment\n# and another\nclient alice\n----\nnothing is said\n\n# more\nshow\n----\nalice: no tasks\n"
    assert "\n".join(map(str, read(text))) == text
    assert Command("submit alice a needs=gpu=1").option("needs") == "gpu=1"
