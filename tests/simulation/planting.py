"""Plants a fault in a method or function by changing one line of its source."""

from __future__ import annotations

import inspect
import sys
import textwrap
from types import ModuleType
from typing import Any, NamedTuple

import pytest


class Fault(NamedTuple):
    """A changed line, and words of the assertion that detects the change. true: the original source."""

    kind: type | ModuleType
    method: str
    true: str
    faulty: str
    words: str


def plant(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace a method with the faulty version, which uses its module's current globals."""
    kind, method, true, faulty, _ = fault
    source = textwrap.dedent(inspect.getsource(getattr(kind, method)))
    true, faulty = (textwrap.dedent(text).replace("\n            ", "\n        ") for text in (true, faulty))
    assert source.count(true) == 1, f"{kind.__name__}.{method} has changed: update this fault"
    module = kind if isinstance(kind, ModuleType) else sys.modules[kind.__module__]
    found: dict[str, Any] = {}
    exec(compile(source.replace(true, faulty), f"<faulty {method}>", "exec"), vars(module), found)
    monkeypatch.setattr(kind, method, found[method])
