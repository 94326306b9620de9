"""Extensions set the context of tasks, and observe the tasks."""

from __future__ import annotations

from collections.abc import Sequence

from scaler.client.options import Options
from scaler.client.task_future import TaskFuture
from scaler.client.tasks import TasksAdded
from scaler.protocol.messages import Submit
from tests.unit.client.test_functions import Table


class Observer:
    def __init__(self, table: Table) -> None:
        self.lines = ""
        self.seen: list[bytes] = []
        self._futures = table.futures

    def context(self, options: Options) -> str:
        return f"{self.lines}{options.priority}" if self.lines else ""

    def submitting(self, futures: Sequence[TaskFuture]) -> None:
        added = [task for each in self._futures.inbox if isinstance(each, TasksAdded) for task in each.tasks]
        assert not {*added}.intersection(futures), "or else they could have ended"
        self.seen += [future.task_id for future in futures]


def test_tasks_carry_the_context_at_their_submission() -> None:
    table = Table()
    table.futures.observer = observer = Observer(table)
    futures = []
    for lines in ("", "a: ", "a: ", "b: "):
        observer.lines = lines
        futures.append(table.futures.submit(table.template(len), ("word",), {}))
    (message,) = (each for each in table.messages() if isinstance(each, Submit))
    assert {group.spec.context: len(group.ids) for group in message.groups} == {"": 1, "a: 0": 2, "b: 0": 1}
    assert observer.seen == [future.task_id for future in futures]


def test_context_of_the_options_remains() -> None:
    table = Table()
    table.futures.observer = observer = Observer(table)
    observer.lines = "later: "
    options = Options(context="first")
    assert table.templates.template(len, options, b"").spec.context == "first"
