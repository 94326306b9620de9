"""Detects growth of a process's figure: the slope of its samples, with its standard error. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

WARM_UP = 0.25
"""Initial share of the samples to ignore, while caches and pools fill."""
BLOCKS = 24
"""Number of blocks to fit. Successive samples are correlated, so single samples would underestimate the error."""
MAX_CORRELATION = 0.9
"""Maximum correlation of successive blocks. A figure with a single step has fewer independent samples."""
ERRORS = 3.0
"""Standard errors by which a slope must exceed its limit to fail."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Change of a figure per hour, and its standard error."""

    per_hour: float
    error: float
    mean: float

    def is_above(self, limit: float) -> bool:
        """Return whether the slope significantly exceeds a limit, in the figure's unit per hour."""
        return self.per_hour - ERRORS * self.error > limit


def slope(samples: Sequence[tuple[float, float]]) -> Slope | None:
    """Return the slope of (seconds, figure) pairs ordered by time, or None if there are too few.

    Fits a least-squares line through the means of blocks with equal numbers of samples. The error grows with the
    correlation of successive residuals, like the error of the mean of a first-order autoregressive series.
    """
    settled = samples[int(len(samples) * WARM_UP) :]
    size = len(settled) // BLOCKS
    if not size:
        return None
    blocks = [settled[start : start + size] for start in range(len(settled) - size * BLOCKS, len(settled), size)]
    times = [fmean(at for at, _ in block) / 3600 for block in blocks]
    figures = [fmean(figure for _, figure in block) for block in blocks]
    middle, mean = fmean(times), fmean(figures)
    spread = sum((at - middle) ** 2 for at in times)
    if not spread:
        return None
    per_hour = sum((at - middle) * (figure - mean) for at, figure in zip(times, figures, strict=True)) / spread
    residuals = [figure - mean - per_hour * (at - middle) for at, figure in zip(times, figures, strict=True)]
    squares = sum(residual * residual for residual in residuals)
    products = sum(one * other for one, other in pairwise(residuals))
    correlation = min(max(products / squares, 0.0), MAX_CORRELATION) if squares else 0.0
    variance = squares / (BLOCKS - 2) * (1 + correlation) / (1 - correlation)
    return Slope(per_hour, math.sqrt(variance / spread), mean)
