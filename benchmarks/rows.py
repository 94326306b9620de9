"""Defines a row of the table: a scenario, its figures, and their aims.

Each row is a separate script with a `ROW` and a `scenario`. It first adds the checkout to the path, which makes
`benchmarks` importable from any directory. The scenario runs in a new process with the measured system's interpreter,
so this module and the scripts import little at the top.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

SYSTEMS = ("scaler", "opengris-scaler", "dask", "ray", "executor")
PLATFORMS = SYSTEMS[:3]
"""Systems that support graphs, nested tasks, and objects sent once."""

ROWS = (
    "submit",
    "map",
    "round_trip",
    "short_tasks",
    "imbalance",
    "graph",
    "nested",
    "recursion",
    "shared_array",
    "large_values",
    "start",
    "idle",
    "memory",
    "killed",
    "many_workers",
    "core",
    "watched",
)
"""Scripts in the order in which they run."""

GROSS = 3.0
"""A short form fails if the ratio to the executor in the same run is this many times worse than the aim."""
GROSS_ALONE = 10.0
"""The same for figures without a ratio, which depend more on the machine."""


@dataclass(frozen=True)
class Figure:
    """One number in a row, with the key that the scenario returns it under."""

    name: str
    aim: float
    is_higher_better: bool = True
    of_executor: float | None = None
    """The aim as a ratio to the executor's figure, if that comparison is fair on any machine. Relative to Dask in rows
    without the executor."""
    is_ratio_aimed: bool = False
    """Whether the ratio is also an aim in the table, and not only a limit for the short form."""
    is_noisy: bool = False
    """Whether one busy neighbor can spoil the figure. A short form does not fail because of it."""
    must_hold: bool = False
    """Whether the figure is independent of the machine. A short form fails if it misses the aim at all."""

    def share_of_aim(self, value: float, executor: float | None = None) -> float:
        """Return 1 at the aim, more if better, and less if worse, regardless of the figure's direction."""
        share = better(value, self.aim, self.is_higher_better)
        if self.is_ratio_aimed and self.of_executor and executor:
            share = min(share, better(value / executor, self.of_executor, self.is_higher_better))
        return share

    def is_gross_loss(self, value: float, executor: float | None) -> bool:
        """Return whether the value is too bad to be explained by a noisy machine."""
        if self.must_hold:
            return self.share_of_aim(value) < 1
        if self.is_noisy:
            return False
        if self.of_executor is None or not executor:
            return self.share_of_aim(value) < 1 / GROSS_ALONE
        return better(value / executor, self.of_executor, self.is_higher_better) < 1 / GROSS


def better(value: float, than: float, is_higher_better: bool) -> float:
    high, low = (value, than) if is_higher_better else (than, value)
    return high / low if low else float("inf")


@dataclass(frozen=True)
class Row:
    """A scenario and its aims."""

    title: str
    """Text in which names of arguments in braces become their values."""
    figures: tuple[Figure, ...]
    full: Mapping[str, int]
    """The scenario's arguments."""
    short: Mapping[str, int]
    """The scenario's arguments for a run of a few seconds."""
    systems: tuple[str, ...] = SYSTEMS
    limit_seconds: float = 120.0
    """Time limit of one run, from the start of its process to its end. The run is killed at the limit."""


def load(name: str) -> Row:
    row = importlib.import_module(f"benchmarks.{name}").ROW
    assert isinstance(row, Row)
    return row


def run_script(name: str) -> None:
    """Measure a row as the command line asks, print it, and exit."""
    frame = importlib.import_module("benchmarks.frame")  # a large import that measured processes do not need
    frame.run_rows((name,))
