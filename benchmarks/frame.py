"""Runs rows: systems take turns, figures are medians of the rounds, and each row is a line of the table."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.machine import machine
from benchmarks.one_run import Answer, run_once
from benchmarks.peers import interpreter, versions
from benchmarks.rows import SYSTEMS, Row, load
from benchmarks.table import Measured, table

SHORT_SYSTEMS = ("scaler", "executor")
SLOW_SECONDS = 20.0
"""Runs that take longer are not repeated, because variation between runs is small in comparison."""


@dataclass(frozen=True)
class Plan:
    """Systems to measure, and the number of rounds."""

    systems: Sequence[str]
    rounds: int
    is_short: bool


def parser(description: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description)
    made.add_argument(
        "--short",
        action="store_true",
        help="run for a few seconds on scaler and the executor; exit with 1 on a gross loss, confirmed once",
    )
    made.add_argument("--systems", help=f"systems to measure, from {','.join(SYSTEMS)} (default: all installed)")
    made.add_argument("--rounds", type=int, help="rounds per figure, which is their median (default: 3, short: 1)")
    return made


def plan(arguments: argparse.Namespace) -> Plan:
    """Return the plan that the arguments ask for, without systems that are not installed."""
    wanted = arguments.systems.split(",") if arguments.systems else SHORT_SYSTEMS if arguments.short else SYSTEMS
    for system in wanted:
        if system not in SYSTEMS:
            raise SystemExit(f"no such system: {system}; there are {', '.join(SYSTEMS)}")
        if interpreter(system) is None:
            print(f"{system} is not installed: python benchmarks/peers.py installs it", file=sys.stderr)
    here = [system for system in wanted if interpreter(system) is not None]
    return Plan(here, arguments.rounds or (1 if arguments.short else 3), arguments.short)


def given_to(row: Row, plan: Plan) -> Mapping[str, int]:
    return row.short if plan.is_short else row.full


def measure(name: str, row: Row, plan: Plan) -> dict[str, Answer]:
    """Return the medians of each system in the row. A system that fails or is slow runs only once."""
    found: dict[str, list[Answer]] = {system: [] for system in plan.systems if system in row.systems}
    problems: dict[str, Answer] = {}
    slow: set[str] = set()
    for number in range(plan.rounds):
        for system, answers in found.items():
            if system in problems or system in slow:
                continue
            began = time.monotonic()
            answer = run_once(name, system, given_to(row, plan), row.limit_seconds)
            seconds = time.monotonic() - began
            print(f"{name}: {system}, {number + 1} of {plan.rounds}: {seconds:.1f} s", file=sys.stderr)
            if answer.problem:
                problems[system] = answer
                print(f"{name}: {system}: {answer.problem}: {answer.detail}", file=sys.stderr)
            answers.append(answer)
            if seconds > SLOW_SECONDS:
                slow.add(system)
    return {system: problems.get(system) or medians(answers) for system, answers in found.items()}


def medians(answers: Sequence[Answer]) -> Answer:
    return Answer({name: statistics.median(each.figures[name] for each in answers) for name in answers[0].figures})


def gross_losses(row: Row, answers: Mapping[str, Answer]) -> list[str]:
    """Return one line for each figure that is too bad to be explained by noise."""
    ours, executor = answers["scaler"], answers.get("executor", Answer({}))
    if ours.problem:
        return [ours.problem]
    return [
        f"{figure.name} is {ours.figures[figure.name]:.4g}, and {executor.figures.get(figure.name)} for the executor; "
        f"the aim is {figure.aim:g}, or {figure.of_executor} times the executor's figure"
        for figure in row.figures
        if figure.is_gross_loss(ours.figures[figure.name], executor.figures.get(figure.name))
    ]


def run_rows(names: Sequence[str], arguments: argparse.Namespace | None = None) -> str:
    """Measure rows, and print and return their table. A short form exits with 1 on a confirmed gross loss."""
    given = arguments or parser("Measure one row of the table in benchmarks/README.md.").parse_args()
    todo = plan(given)
    measured: list[Measured] = []
    losses: list[str] = []
    for name in names:
        row = load(name)
        answers = measure(name, row, todo)
        if todo.is_short and gross_losses(row, answers):
            answers = measure(name, row, todo)
            losses += [f"{name}: {loss}" for loss in gross_losses(row, answers)]
        measured.append((row.title.format_map(given_to(row, todo)), row, answers))
        print(table(measured[-1:], todo.systems), file=sys.stderr)  # in case a later row aborts a long run
    text = f"{machine(todo.rounds)}\n\n" + "".join(f"- {versions(system)}\n" for system in todo.systems)
    text += "\n" + table(measured, todo.systems)
    print(text)
    if losses:
        print("Lost grossly:", *losses, sep="\n", file=sys.stderr)
        raise SystemExit(1)
    return text
