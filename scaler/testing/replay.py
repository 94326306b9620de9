"""Replays black boxes: `python -m scaler.testing.replay FILE` steps a new core through the recorded inputs, and checks
its invariants after every step. The scaling policy is not queried, because its answers are recorded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, get_args

from scaler.config.servers import SchedulerConfig
from scaler.errors import ConfigError
from scaler.grammar import counted
from scaler.net.connection import Identity
from scaler.policy.load import load_policy
from scaler.policy.view import Wanted
from scaler.protocol.codec import decode
from scaler.protocol.messages import Outcome, Role
from scaler.scheduler.core.changes import Observed
from scaler.scheduler.core.commands import Input
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.rooms import make_rooms, make_scaling
from scaler.testing.invariants import check
from scaler.testing.simulation.stepping import built_in

_OF_DURABILITY = [kind for each in built_in("durability") for kind in each.durability().inputs]
_KINDS = *get_args(Input), *get_args(Observed), Outcome, Wanted, Identity, Role, *_OF_DURABILITY
_RECORDS = {kind.__name__: kind for kind in _KINDS}
_NO_HEAD = "its first line is not a black box header"


def read(file: IO[str]) -> tuple[dict[str, Any], Iterator[tuple[float, list[Any]]]]:
    """Return the header of a black box, and (now, inputs) of each step. Raises ValueError if the file is not a black
    box."""
    try:
        head = json.loads(file.readline())
        head["complete"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(_NO_HEAD) from error
    steps = (json.loads(line, object_hook=_from_json) for line in file)
    return head, ((step["now"], step["inputs"]) for step in steps)


def _from_json(value: dict[str, Any]) -> Any:
    match value:
        case {"record": kind, **parts}:
            return _RECORDS[kind](**parts)
        case {"bytes": text}:
            return bytes.fromhex(text)
        case {"message": text}:
            return decode(bytes.fromhex(text))
        case {"items": items}:
            return dict(items)
        case _:
            return value


def _make_core(head: Mapping[str, Any], now: float) -> tuple[Callable[[list[Any], float], Any], Callable[[], None]]:
    """Return the `step` of a new core, and a check of its invariants."""
    config = SchedulerConfig.from_json(head["config"])
    policy = load_policy(config.policy_engine_type, config.policy_content)
    scaling = make_scaling(policy.allocation, config.extensions)
    core = SchedulerCore(config, now, scaling, rooms=make_rooms(config))
    return core.step, partial(check, core.state)


def replay(path: Path) -> int:
    """Step a new core through a black box, checking every invariant; return the number of steps.

    Raises the core's error, or AssertionError for a violated invariant; a note names the step. Raises ValueError if the
    file is not a black box, and OSError if it is unreadable.
    """
    with path.open() as file:
        head, steps = read(file)
        count = 0
        for count, (now, inputs) in enumerate(steps, 1):
            if count == 1:
                try:
                    step, check_all = _make_core(head, now)
                except (ConfigError, KeyError) as error:
                    raise ValueError(_NO_HEAD) from error
            try:
                step(inputs, now)
                check_all()
            except Exception as error:
                error.add_note(f"in step {count - 1} of the record, at {now:.6f} s, with inputs {inputs!r}")
                raise
        return count


def main() -> int:
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m scaler.testing.replay FILE\n")
        return 2
    try:
        steps = replay(Path(sys.argv[1]))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{sys.argv[1]}: {error}\n")
        return 2
    sys.stdout.write(f"replayed {counted(steps, 'step')}; every invariant held\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
