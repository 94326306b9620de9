"""The scheduler's black box: see `scaler.recorder`. The answers of the scaling policy are inputs too, so a replay asks
no policy.

`python -m scaler.scheduler.recorder FILE` steps a new core through a file and checks every invariant after every step.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

from scaler import recorder
from scaler.config.servers import SchedulerConfig
from scaler.net.connection import Received
from scaler.net.identity import Identity
from scaler.policy.load import load_policy
from scaler.policy.view import Wanted
from scaler.protocol.messages import Done, Output, Printed, Relay, Role, Submit
from scaler.recorder import ROW_BYTES
from scaler.scheduler.core.commands import Input
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.invariants import check

RECORDS = (*get_args(Input), Wanted, Identity, Role)
"""What the core's inputs are made of."""


def size_of(item: Input) -> int:
    """Return roughly how many bytes an input keeps alive. Only what workers and clients send in bulk counts by size."""
    match item.message if isinstance(item, Received) else None:
        case Submit(_, groups):
            return sum(_columns(group.payloads) for group in groups)
        case Done(payloads=texts) | Printed(texts=texts):
            return _columns(texts)
        case Output(text=text) | Relay(body=text):
            return ROW_BYTES + len(text)
        case _:
            return ROW_BYTES


def _columns(payloads: list[bytes]) -> int:
    return ROW_BYTES * len(payloads) + sum(map(len, payloads))


def _make_core(head: Mapping[str, Any], now: float) -> Any:
    config = SchedulerConfig.from_json(head["config"])
    policy = load_policy(config.policy_engine_type, config.policy_content)
    core = SchedulerCore(config, policy.allocation, now)
    return core.step, partial(check, core.state)


def replay(path: Path) -> int:
    """Step a new core through a black box; see `scaler.recorder.replay`."""
    return recorder.replay(path, RECORDS, _make_core)


if __name__ == "__main__":
    sys.exit(recorder.main("scaler.scheduler.recorder", replay))
