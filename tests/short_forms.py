"""Lists of values: `make test` uses the first few, and `make check` all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def short_form(values: Sequence[Any], first: int = 1) -> list[Any]:
    """Return the values for `pytest.mark.parametrize`, with all but the first few marked `full`.

    A tuple supplies the values of several arguments.
    """
    rows = (value if isinstance(value, tuple) else (value,) for value in values[first:])
    return [*values[:first], *(pytest.param(*row, marks=pytest.mark.full) for row in rows)]
