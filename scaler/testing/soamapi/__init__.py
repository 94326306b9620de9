"""Emulator of `soamapi`, the client and service library of IBM Spectrum Symphony, limited to the parts that Scaler
uses.

This process replaces Symphony: it schedules tasks (`grid.py`) and runs each in a real service process, started with the
service's command. Callbacks run on the emulator's own threads, several at a time. `Fault`s inject failures.

`import soamapi` loads the emulator if `ON_PATH` is on `sys.path`. `StandIn(...).environment()` provides the path and
the settings for another process. In this process, call `reset(StandIn(...))`. Names, signatures, and semantics
follow the product's API reference. `docs/symphony.md` lists assumptions where the reference is silent.
"""

from __future__ import annotations

from scaler.testing.soamapi.settings import ON_PATH, Fault, StandIn

__all__ = ["ON_PATH", "Fault", "StandIn"]
