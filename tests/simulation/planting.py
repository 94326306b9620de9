"""Plants a fault in a method: its source with one line changed."""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any, NamedTuple

import pytest


class Fault(NamedTuple):
    """What is changed, and the words of the assertion that notices it. true: a piece of the method's source."""

    kind: type
    method: str
    true: str
    faulty: str
    words: str


def plant(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the fault in the place of the method."""
    kind, method, true, faulty, _ = fault
    source = textwrap.dedent(inspect.getsource(getattr(kind, method)))
    true, faulty = (textwrap.dedent(text).replace("\n            ", "\n        ") for text in (true, faulty))
    assert source.count(true) == 1, f"{kind.__name__}.{method} reads otherwise now: mend this fault"
    namespace: dict[str, Any] = dict(vars(sys.modules[kind.__module__]))
    exec(compile(source.replace(true, faulty), f"<faulty {method}>", "exec"), namespace)
    monkeypatch.setattr(kind, method, namespace[method])
