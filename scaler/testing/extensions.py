"""Contract checks for extensions. See docs/extensions.md.

Call each function of CHECKS with a new `Contract`. A check raises AssertionError. The extension's scheduler part
runs in a simulated cluster, in which tasks fail and connections break.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property, partial
from typing import Any, cast

from scaler.config.load import model_of
from scaler.config.servers import SchedulerConfig
from scaler.config.setting import SettingsModel
from scaler.monitor.rows import json_schema
from scaler.monitor.tables import TABLES
from scaler.net.connection import ANYONE
from scaler.plugins import Extension, load
from scaler.scheduler.core.commands import HoldObjects, Perform
from scaler.scheduler.core.rooms import Rooms
from scaler.scheduler.core.state import ClientRecord
from scaler.testing.simulation.actors import Chances
from scaler.testing.simulation.stepping import built_in
from scaler.testing.simulation.world import World

IMPURE = {"asyncio", "logging", "multiprocessing", "os", "random", "socket", "subprocess", "threading", "time", "uuid"}
HOOKS = {"on_changes": "changes", "on_message": "messages", "on_question": "questions"}
"""Hooks, and the declaration that each belongs to."""
_MOST = 3


@dataclass(frozen=True)
class HookCall:
    """A recorded call of a hook. now: by the part's clock."""

    hook: str
    now: float
    next_at: float
    """The part's `next_at` after the call."""
    commands: list[object]
    is_unchanged: bool
    """True if the part left its arguments unchanged."""


@dataclass
class Contract:
    """An extension under test, and the settings for its part."""

    extension: Extension
    settings: Mapping[str, object] = field(default_factory=dict)

    def part(self) -> Any:
        """Return a new scheduler part."""
        added = (cast("type[Any]", load(self.extension.settings)),) if self.extension.settings else ()
        made: type[Any] = type("Settings", (SchedulerConfig, *added), {})
        model: type[Any] = dataclass(frozen=True, kw_only=True)(made)
        make = cast("Callable[..., Any]", load(self.extension.scheduler))
        return make(model_of(model, {"bind_address": "tcp://127.0.0.1:0", **self.settings}))

    @cached_property
    def first(self) -> tuple[list[HookCall], dict[str, list[Any]]]:
        """The result of one shared `run`."""
        return self.run()

    def run(self) -> tuple[list[HookCall], dict[str, list[Any]]]:
        """Run a cluster with a new part. Return the hook calls, and the rows of the part's tables at the end."""
        part, calls = self.part(), list[HookCall]()
        for hook in ("on_changes", "on_message", "on_time"):
            setattr(part, hook, partial(_called, part, hook, getattr(part, hook), calls))
        rooms = Rooms([part, *built_in("resources")] if self.extension.name != "resources" else [part])
        world = World(
            seed=1,
            workers=3,
            clients=2,
            tasks=60,
            chances=Chances(exceptions=0.1),
            check_every=0,
            settle_seconds=5.0,
            rooms=rooms,
        )
        world.run()
        reader = ClientRecord(bytes(8), "", 0.0, identity=ANYONE._replace(is_admin=True))
        tables = [table.name for table in self.extension.found]
        return calls, {name: [*part.rows(name, "", _MOST, reader, world.core.state)] for name in tables}


def _called(
    part: Any, hook: str, call: Callable[..., Iterable[object]], calls: list[HookCall], *args: Any
) -> list[object]:
    before = _shown(args[0])
    commands = [*call(*args)]
    now = args[-1].clock if hook != "on_message" else math.nan
    calls.append(HookCall(hook, now, part.next_at, commands, _shown(args[0]) == before))
    return commands


def _shown(value: Any) -> object:
    """Return a snapshot of the columns of changes."""
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    if is_dataclass(value):
        columns = (getattr(value, each.name) for each in fields(value))
        return [repr(column) if isinstance(column, str | int | float) else str(_size(column)) for column in columns]
    return repr(value) if isinstance(value, str | int | float | bytes) else None


def _size(column: object) -> int:
    return len(column) if isinstance(column, Sized) else 0


def declaration_loads(contract: Contract) -> None:
    """Check that every reference resolves to an object of its kind, and that table names are unique."""
    extension = contract.extension
    assert isinstance(extension, Extension)
    if extension.settings:
        model = cast("type[Any]", load(extension.settings))
        assert issubclass(model, SettingsModel), f"{extension.settings} is no SettingsModel"
        model_of(model, {})  # every setting has a default
    for each in filter(None, (extension.scheduler, extension.performer)):
        assert callable(load(each)), f"{each} cannot be called"
    for table in extension.found:
        known = TABLES.get(table.name)
        assert known is None or known.kind is table.kind, f"another table has the name {table.name!r}"
        assert set(table.kind._field_defaults) == set(table.kind._fields), f"a field of {table.row} has no default"
        json_schema(table.kind)


def part_is_pure(contract: Contract) -> None:
    """Check that the part's module imports no clock, file, socket, or random number."""
    if not contract.extension.scheduler:
        return
    module = inspect.getmodule(type(contract.part()))
    assert module is not None
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        named = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        impure = IMPURE.intersection(name.partition(".")[0] for name in named)
        assert not impure, f"{module.__name__} imports {', '.join(sorted(impure))}, which a pure part does not need"
        assert not (isinstance(node, ast.Name) and node.id == "open"), f"{module.__name__} opens a file"


def hooks_fit_declarations(contract: Contract) -> None:
    """Check that the part has exactly the hooks for its declared changes, messages, and questions."""
    if not contract.extension.scheduler:
        return
    part = contract.part()
    base = next((each for each in type(part).__mro__ if each.__name__ == "SchedulerPart"), object)
    for hook, declaration in HOOKS.items():
        has_hook = getattr(type(part), hook) is not getattr(base, hook, None)
        assert has_hook == bool(getattr(type(part), declaration)), f"{hook} and {declaration} do not match"


def same_input_same_output(contract: Contract) -> None:
    """Check that two parts return the same output for the same changes, and leave the changes unmodified."""
    if not contract.extension.scheduler:
        return
    (calls, rows), (again, rows_again) = contract.first, contract.run()
    for call, other in zip(calls, again, strict=True):
        assert call.commands == other.commands, f"{call.hook} returned {call.commands} once, then {other.commands}"
    assert rows == rows_again, "two parts that received the same changes returned different rows"
    assert all(call.is_unchanged for call in calls), "the part has modified the changes that it received"


def commands_are_own(contract: Contract) -> None:
    """Check that commands only address the extension's performer, or hold objects."""
    extension = contract.extension
    for call in contract.first[0] if extension.scheduler else ():
        for command in call.commands:
            match command:
                case Perform(name, _) if name == extension.name and extension.performer:
                    pass
                case HoldObjects():
                    pass
                case _:
                    raise AssertionError(f"{call.hook} returned {command!r}: no Perform of its own")


def time_moves_on(contract: Contract) -> None:
    """Check that `on_time` sets `next_at` to a later time."""
    for call in contract.first[0] if contract.extension.scheduler else ():
        assert call.hook != "on_time" or call.next_at > call.now, (
            f"next_at is {call.next_at} after the call at {call.now}"
        )


def rows_fit_declaration(contract: Contract) -> None:
    """Check that rows are JSON, of the declared type, and no more than requested."""
    kinds = {table.name: table.kind for table in contract.extension.found}
    for name, rows in contract.first[1].items() if contract.extension.scheduler else ():
        assert len(rows) <= _MOST, f"{name!r} returned {len(rows)} rows, but {_MOST} were requested"
        for row in rows:
            assert type(row) is kinds[name], f"a row of {name!r} has another type: {row!r}"
            json.dumps(row, allow_nan=False)


CHECKS: tuple[Callable[[Contract], None], ...] = (
    declaration_loads,
    part_is_pure,
    hooks_fit_declarations,
    same_input_same_output,
    commands_are_own,
    time_moves_on,
    rows_fit_declaration,
)
