"""What a row of the table is: a scenario, its figures, and what they should be.

A row is a script of its own that begins by putting the checkout on the path, so that `benchmarks` is a package from
wherever it is run, and has a `ROW` and a `scenario`. The scenario runs in a fresh process in the interpreter of the
system that it measures; what this module and the scripts import at their top is therefore small.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

SYSTEMS = ("scaler", "opengris-scaler", "dask", "ray", "executor")
PLATFORMS = SYSTEMS[:3]
"""Those that have graphs, tasks inside tasks, and objects that are sent once."""

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
"""The scripts, in the order in which they run."""

GROSS = 3.0
"""A short form fails when it is this many times worse than the aim, as a ratio to the executor of the same run."""
GROSS_ALONE = 10.0
"""The same for figures without a ratio, which depend on the machine."""


@dataclass(frozen=True)
class Figure:
    """One number of a row, under the name that its scenario returns it by."""

    name: str
    aim: float
    is_higher_better: bool = True
    of_executor: float | None = None
    """The aim as a ratio to the executor's figure, where that is a fair comparison on any machine. To Dask's in rows
    without the executor."""
    is_ratio_aimed: bool = False
    """True where the ratio is an aim as well, and not only what a short form goes by."""
    is_noisy: bool = False
    """True for what one busy neighbour can spoil: a short form does not fail over it."""
    must_hold: bool = False
    """True for what does not depend on the machine: a short form that misses it at all fails."""

    def share_of_aim(self, value: float, executor: float | None = None) -> float:
        """Return 1 for the aim itself, more for better and less for worse, however the figure is counted."""
        share = better(value, self.aim, self.is_higher_better)
        if self.is_ratio_aimed and self.of_executor and executor:
            share = min(share, better(value / executor, self.of_executor, self.is_higher_better))
        return share

    def is_gross_loss(self, value: float, executor: float | None) -> bool:
        """Return whether even a noisy machine does not explain this value."""
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
    """A scenario and what it should reach."""

    title: str
    """Names of arguments in braces become their values."""
    figures: tuple[Figure, ...]
    full: Mapping[str, int]
    """The scenario's arguments."""
    short: Mapping[str, int]
    """Its arguments where a few seconds must do."""
    systems: tuple[str, ...] = SYSTEMS
    limit_seconds: float = 120.0
    """Of one run, from the start of its process to its end. What takes longer is ended."""


def load(name: str) -> Row:
    row = importlib.import_module(f"benchmarks.{name}").ROW
    assert isinstance(row, Row)
    return row


def run_script(name: str) -> None:
    """Measure a row as its script's arguments say, print it, and exit."""
    frame = importlib.import_module("benchmarks.frame")  # larger, and of no use to the processes that are measured
    frame.run_rows((name,))
