"""A stand-in for `soamapi`, the client and service library of IBM Spectrum Symphony: the part of it that Scaler uses.

There is no Symphony behind it but this process, which schedules tasks (`grid.py`) and runs each in a real service
process that it starts with the service's command. Callbacks come on threads of its own, several at a time. `Fault`s
say what goes wrong.

`import soamapi` finds it where `ON_PATH` is on `sys.path`. A process of its own needs `StandIn(...).environment()`,
which has that and the settings; a user in this process calls `reset(StandIn(...))`. Names, signatures and
semantics come from the product's API reference; where that leaves something open, `docs/symphony.md` says so.
"""

from __future__ import annotations

from scaler.testing.soamapi.settings import ON_PATH, Fault, StandIn

__all__ = ["ON_PATH", "Fault", "StandIn"]
