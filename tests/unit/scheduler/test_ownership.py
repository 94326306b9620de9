"""One owner for each kind of state: only the owner's module writes a task's state or a worker's fields."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import scaler.scheduler
from scaler.scheduler.core import resources, state
from scaler.scheduler.core.state import ClientRecord, Group, PeerRecord, Recalled, Waiting, Worker

ROOT = Path(scaler.scheduler.__file__).parent
TASK_STATE = {"state"} | {part.name for kind in (Waiting, Recalled) for part in fields(kind)} - {"worker"}
PARTS = Worker, resources.Claims, state.WorkerProgress, state.Reports
FACTS = {"at", "claims", "failures_in_row", "has_accounted", "has_begun", "is_awaited", "last_message_at"}
"""Values that no other value depends on."""
WORKER = {part.name for kind in PARTS for part in fields(kind)} - FACTS
WORKERS_ALONE = {part.name for part in fields(PeerRecord)} | {part.name for part in fields(Worker)} - {
    part.name for part in (*fields(ClientRecord), *fields(Group))
}
WORKERS_ALONE -= FACTS
CHANGES = {"add", "append", "clear", "discard", "move_to_end", "pop", "popitem", "remove", "setdefault", "update"}


def written(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Yield every attribute that is assigned, deleted, or changed by an item or by a method of a container."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        match node:
            case ast.Assign() | ast.Delete():
                targets = list(node.targets)
            case ast.AugAssign() | ast.AnnAssign():
                targets = [node.target]
            case ast.Call(func=ast.Attribute(value=ast.Attribute() as container, attr=method)) if method in CHANGES:
                targets = [container]
            case _:
                pass
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                inner = part.value if isinstance(part, ast.Subscript) else part
                if isinstance(inner, ast.Attribute):
                    yield inner


@cache
def trees() -> dict[str, list[ast.Attribute]]:
    return {path.stem: [*written(ast.parse(path.read_text()))] for path in ROOT.rglob("*.py")}


def writers(is_meant: object) -> set[str]:
    """Return the modules that write such an attribute of anything but `self`."""
    assert callable(is_meant)
    return {
        name
        for name, attributes in trees().items()
        for attribute in attributes
        if not (isinstance(attribute.value, ast.Name) and attribute.value.id == "self") and is_meant(attribute)
    }


def of_worker(attribute: ast.Attribute) -> bool:
    owner = ast.unparse(attribute.value)
    if "worker" in owner:
        return attribute.attr in WORKER
    return attribute.attr in WORKERS_ALONE and "monitor" not in owner  # a monitor has a separate connection


def test_only_one_source_file_writes_the_state_of_tasks() -> None:
    assert writers(lambda attribute: attribute.attr in TASK_STATE) == {"tasks"}


def test_only_a_workers_record_updates_its_counters() -> None:
    assert writers(of_worker) == set()


def test_worker_has_the_attributes_known_to_these_tests() -> None:
    assert {"tasks", "recalled", "draining", "limit", "by_function"} <= WORKER
    assert {"recalled", "draining", "broken_at"} <= WORKERS_ALONE
    assert {"state", "missing", "cancel", "ahead"} == TASK_STATE
