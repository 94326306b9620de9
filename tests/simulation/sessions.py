"""Programs of durable sessions that are killed and rerun while servers with journals fail.

A program has a list of tasks with keys. Each run submits all of them in order, and receives every outcome.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import NamedTuple

from scaler.ids import keyed_task_id
from scaler.monitor.messages import EndSession
from scaler.protocol.messages import Finished, Message, Outcome, Spec, Submit, TaskGroup
from scaler.testing.simulation.actors import CODE, ActorWorld, Chances, SimulatedClient
from scaler.testing.simulation.world import SimulationReport
from tests.simulation.restarts import LAST_FAULT_SECONDS, RestartingWorld
from tests.simulation.storage import SimulatedStorage
from tests.simulation.whole import StoringClient

AWAY_SECONDS = 0.1, 6.0


class ProgramTask(NamedTuple):
    """A task in a program. references: earlier tasks."""

    id: bytes
    spec: Spec
    references: tuple[bytes, ...]


class ProgramRun(StoringClient):
    """One run of a program in a durable session. tasks: tasks of an earlier run, or None to create some."""

    def __init__(
        self,
        identifier: bytes,
        tasks: int,
        world: ActorWorld,
        random: Random,
        chances: Chances,
        storage: SimulatedStorage,
    ) -> None:
        super().__init__(identifier, tasks, world, random, chances, storage)
        self.session = identifier.hex()
        self.tasks: list[ProgramTask] = []
        for number in range(tasks):
            earlier = [task.id for task in self.tasks[-20:]]
            count = random.randrange(1, 4) if earlier and random.random() < chances.dependencies else 0
            references = tuple(random.choice(earlier) for _ in range(count))
            self.tasks.append(ProgramTask(keyed_task_id(identifier, str(number)), self._spec(), references))

    def again(self, world: ActorWorld, random: Random, chances: Chances, storage: SimulatedStorage) -> ProgramRun:
        """Return the next run of the program."""
        run = ProgramRun(self.id, 0, world, random, chances, storage)
        run.tasks, run._left = self.tasks, len(self.tasks)
        return run

    def burst(self, size: int) -> None:
        first = len(self.tasks) - self._left
        groups: dict[Spec, TaskGroup] = {}
        functions: list[tuple[bytes, bytes]] = []
        taken = self.tasks[first : first + size]
        for identifier, spec, references in taken:
            if spec.function not in self._defined:
                self._defined.add(spec.function)
                functions.append((spec.function, CODE[spec.function]))
            group = groups.setdefault(spec, TaskGroup(spec, [], [], []))
            group.ids.append(identifier)
            group.payloads.append(b"\x80 some arguments")
            self._referenced[identifier] = tuple(each for each in references if each in self.expected)
            group.references.append(self._referenced[identifier])
            self.expected[identifier] = spec
            if not spec.retries:
                self.once.add(identifier)
        self._left -= len(taken)
        self.say(Submit(functions, list(groups.values()), self._seen))
        self._seen = self._number

    def _new_rows(self, message: Finished) -> Finished:
        """Drop rows for tasks that only an earlier run has submitted. They are delivered again later."""
        known = [row for row, each in enumerate(message.ids) if each in self.expected or each in self.delivered]
        columns = (message.ids, message.outcomes, message.payloads, message.duration_us)
        return super()._new_rows(Finished(message.number, *([column[row] for row in known] for column in columns)))  # type: ignore[arg-type]

    def say(self, message: Message) -> None:
        if isinstance(message, Submit):
            for group in message.groups:
                group.labels = [(identifier[10:].hex().encode(), b"") for identifier in group.ids]
        super().say(message)

    def leave(self) -> None:
        self.say(EndSession(self.id, remove=True))


class SessionWorld(RestartingWorld):
    """A RestartingWorld whose clients are programs in durable sessions."""

    _away = 0
    """Number of ended programs that will run again."""

    def _make_client(self, tasks: int) -> SimulatedClient:
        return ProgramRun(self._random.randbytes(8), tasks, self, self._random, self._chances, self._storage)

    def _crash_client(self) -> None:
        programs = [each for each in self._living(SimulatedClient) if isinstance(each, ProgramRun)]
        if not programs or self._is_done() or self._is_over or self.now > LAST_FAULT_SECONDS:
            return
        program = self._random.choice(programs)
        self._report.client_losses += 1
        self._die(program, goodbye=0.5)
        self._away += 1
        self.later(self.now + self._random.uniform(*AWAY_SECONDS), partial(self._run_again, program))

    def _run_again(self, program: ProgramRun) -> None:
        self._away -= 1
        run = program.again(self, self._random, self._chances, self._storage)
        self._clients.append(run)
        self._begin(run)

    def _is_done(self) -> bool:
        return not self._away and super()._is_done()

    def _expelled(self, peer: bytes) -> None:
        if not self._is_over:  # otherwise, its session was removed
            super()._expelled(peer)

    def run(self) -> SimulationReport:
        report = super().run()
        last = {client.id: client for client in self._clients}
        for client in last.values():
            assert isinstance(client, ProgramRun)
            assert len(client.delivered) == len(client.tasks), "the last run of a program lacks outcomes"
            failed = [each for each in client.delivered.values() if each[0] != Outcome.SUCCESS]
            assert not failed, f"tasks failed although no worker was lost: {failed}"
        return report
