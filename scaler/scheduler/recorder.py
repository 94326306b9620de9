"""The scheduler's black box; see `scaler.recorder`. Answers of the scaling policy are inputs, so a replay asks no
policy.

`python -m scaler.scheduler.recorder FILE` replays a file with a new core, and checks all invariants after every step.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

from scaler import recorder
from scaler.config.servers import SchedulerConfig
from scaler.net.connection import Received
from scaler.net.identity import Identity
from scaler.policy.load import load_policy
from scaler.policy.view import Wanted
from scaler.protocol.messages import Done, ManagerStatus, Output, Printed, Relay, Role, Submit, WorkerHeartbeat
from scaler.recorder import ROW_BYTES
from scaler.scheduler.core.changes import Observed
from scaler.scheduler.core.commands import Input, Recovered, StorageSaid
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.invariants import check
from scaler.scheduler.data.stores import HostStores
from scaler.scheduler.rooms import make_rooms
from scaler.scheduler.scaling.elastic import Elastic

RECORDS = (*get_args(Input), *get_args(Observed), Wanted, Identity, Role)
ID_BYTES = 128
"""Approximate memory per id in a message, with its row."""


def size_of(item: Input) -> int:
    """Return the approximate memory of an input."""
    match item.message if isinstance(item, Received | StorageSaid) else item:
        case Submit(functions, groups):
            size = sum(_columns(group.payloads) for group in groups)
            return size + _columns([payload for _, payload in functions]) if functions else size
        case Done(payloads=texts) | Printed(texts=texts):
            return _columns(texts)
        case Output(text=text) | Relay(body=text):
            return ROW_BYTES + len(text)
        case WorkerHeartbeat(processors=rows) | ManagerStatus(units=rows):
            return ROW_BYTES * (1 + len(rows))
        case Recovered(client=client, submits=submits, results=results, values=values):
            size = sum(_columns(each.payloads) for each in results) + _columns(values.values())
            return size + sum(size_of(Received(client, submit)) for submit in submits)
        case other:
            return ROW_BYTES + ID_BYTES * len(getattr(other, "ids", ()))


def _columns(payloads: Collection[bytes]) -> int:
    return ROW_BYTES * len(payloads) + sum(map(len, payloads))


def _make_core(head: Mapping[str, Any], now: float) -> Any:
    config = SchedulerConfig.from_json(head["config"])
    policy = load_policy(config.policy_engine_type, config.policy_content)
    core = SchedulerCore(config, now, Elastic(policy.allocation), HostStores(), rooms=make_rooms(config))
    return core.step, partial(check, core.state)


def replay(path: Path) -> int:
    return recorder.replay(path, RECORDS, _make_core)


if __name__ == "__main__":
    sys.exit(recorder.main("scaler.scheduler.recorder", replay))
