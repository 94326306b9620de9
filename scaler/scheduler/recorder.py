"""Replays the scheduler's black box; see `scaler.recorder`. Answers of the scaling policy are inputs, so no policy is
asked.

`python -m scaler.scheduler.recorder FILE` replays a file with a new core, and checks all invariants after every step.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

from scaler import recorder
from scaler.config.servers import SchedulerConfig
from scaler.net.identity import Identity
from scaler.policy.load import load_policy
from scaler.policy.view import Wanted
from scaler.protocol.messages import Role
from scaler.scheduler.core.changes import Observed
from scaler.scheduler.core.commands import Input
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.invariants import check
from scaler.scheduler.data.stores import HostStores
from scaler.scheduler.rooms import make_rooms
from scaler.scheduler.scaling.elastic import Elastic

RECORDS = (*get_args(Input), *get_args(Observed), Wanted, Identity, Role)


def _make_core(head: Mapping[str, Any], now: float) -> Any:
    config = SchedulerConfig.from_json(head["config"])
    policy = load_policy(config.policy_engine_type, config.policy_content)
    core = SchedulerCore(config, now, Elastic(policy.allocation), HostStores(), rooms=make_rooms(config))
    return core.step, partial(check, core.state)


def replay(path: Path) -> int:
    return recorder.replay(path, RECORDS, _make_core)


if __name__ == "__main__":
    sys.exit(recorder.main("scaler.scheduler.recorder", replay))
