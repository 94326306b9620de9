"""Formats the table in Markdown: a line per row, with the row that is furthest from its aim first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, isnan

from benchmarks.one_run import Answer
from benchmarks.rows import Row

OURS = "scaler"
EXECUTOR = "executor"
DASK = "dask"

Measured = tuple[str, Row, Mapping[str, Answer]]
"""A row's title with its arguments filled in, the row, and each system's answer."""


def table(measured: Sequence[Measured], systems: Sequence[str]) -> str:
    """Return the table, with the rows that miss their aim by most first."""
    head = ["scenario", *systems, "of the executor, or of Dask", "aim", "holds"]
    lines = [head, ["---"] * len(head), *(line(each, systems) for each in sorted(measured, key=share_of_aim))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def share_of_aim(measured: Measured) -> float:
    """Return Scaler's worst figure of a row relative to its aim: 1 or more if the aim is reached."""
    _, row, answers = measured
    ours = answers.get(OURS)
    if ours is None:
        return float("inf")
    if ours.problem:
        return 0.0
    reference = answers.get(reference_of(row), Answer({})).figures
    return min(figure.share_of_aim(ours.figures[figure.name], reference.get(figure.name)) for figure in row.figures)


def reference_of(row: Row) -> str:
    """Return the system to which a row's ratios refer."""
    return EXECUTOR if EXECUTOR in row.systems else DASK


def line(measured: Measured, systems: Sequence[str]) -> list[str]:
    title, row, answers = measured
    cells = [cell(row, answers.get(system)) for system in systems]
    ours, reference = answers.get(OURS, Answer({})), answers.get(reference_of(row), Answer({}))
    aims = [
        number(figure.aim) + (f", {figure.of_executor:g} x" if figure.is_ratio_aimed else "") for figure in row.figures
    ]
    return [title, *cells, ratios(row, ours, reference), " / ".join(aims), holds(measured)]


def cell(row: Row, answer: Answer | None) -> str:
    if answer is None:
        return "-"
    return answer.problem or " / ".join(number(answer.figures[figure.name]) for figure in row.figures)


def ratios(row: Row, ours: Answer, reference: Answer) -> str:
    if not ours.figures or not reference.figures:
        return "-"
    shown = []
    for figure in row.figures:
        theirs = reference.figures.get(figure.name)
        shown.append(f"{number(ours.figures[figure.name] / theirs)} x" if theirs and not isnan(theirs) else "-")
    return " / ".join(shown)


def holds(measured: Measured) -> str:
    share = share_of_aim(measured)
    if share == float("inf"):
        return "-"
    return "yes" if share >= 1 else f"no: {floor(100 * share)} % of it"


def number(value: float) -> str:
    """Format a number with at least three digits."""
    if isnan(value):
        return "-"
    if value == int(value):
        return f"{value:,.0f}"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3
    return f"{value:,.{digits}f}"
