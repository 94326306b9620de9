"""`Client.gang`, and the future of a gang."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, Unpack, cast

from scaler import errors
from scaler.client.future import PENDING, ScalerFuture, Unloaded
from scaler.client.options import OptionKeywords, Options, check_integer
from scaler.client.task_calls import TaskCalls, check_arguments, hiding_frames_of_methods
from scaler.client.task_future import TaskFuture
from scaler.client.tasks import ObjectUpload, Reference, Stage, TaskTemplate
from scaler.extensions.async_calls import AsyncCalls, passed
from scaler.extensions.gangs.member import Member
from scaler.grammar import counted
from scaler.needs import GANG
from scaler.serialization import name_of
from scaler.serialization.arguments import Collection
from scaler.serialization.exceptions import annotate

MAX_SIZE = 10_000
_LOST = (errors.WorkerLostError, errors.ProcessorDiedError)
"""Failures after which a gang restarts. A member's exception may be caused by another member's loss."""


@hiding_frames_of_methods()
class GangCalls(TaskCalls):
    def gang(
        self,
        fn: Callable[..., Any],
        n: int,
        /,
        *args: Any,
        per_host: int | None = None,
        **options: Unpack[OptionKeywords],
    ) -> ScalerFuture:
        """Call `fn(*args)` in n tasks that start together or not at all, for programs whose parts communicate, such as
        MPI programs. Returns at once.

        Inside `fn`, `scaler.current_gang()` returns the `rank` of the member, from 0, the `size`, the `hosts` of all
        members by rank, and a free `port` on the first of them. If a member fails or is cancelled, all members are
        stopped. If a worker was lost, the whole gang restarts.

        Args:
            fn: the function.
            n: number of members.
            args: arguments of the function, the same for each member.
            per_host: maximum number of members on a host.
            options: options of each member, as in `submit_verbose`. `retries`, or `losses` if given, limits how often
                the gang is restarted after it loses a worker; `retry_on`, `retry_delay`, and `preemptible` do not apply
                to gangs.

        Returns:
            The future of the list of results, by rank. If a member fails, the future fails with the same exception once
            all members have stopped. `cancel` stops all members.

        Raises:
            UsageError: An option is invalid.
            SerializationError: The function or an argument cannot be pickled.
            LimitError: The scheduler or the object storage was full for `timeout_seconds`.
            ClientClosedError: The client is closed.
        """
        carried = self._options_of(options, "gang")
        check_integer("n", n, 1, MAX_SIZE)
        if per_host is not None:
            check_integer("per_host", per_host, 1)
        if carried.retry_on or carried.retry_delays:
            raise errors.UsageError("a gang restarts only after it loses a worker: omit retry_on and retry_delay")
        if carried.preemptible:
            raise errors.UsageError("gang members are never stopped for other tasks: omit preemptible")
        self._check_open()
        check_arguments(fn, args, {})
        return GangFuture(self, fn, n, min(per_host or 0, n), args, carried)


class AsyncGangCalls(AsyncCalls):
    gang = passed(GangCalls.gang)


class GangFuture(TaskFuture):
    """The future of a gang. Its task id is the first member's."""

    def __init__(
        self,
        calls: TaskCalls,
        fn: Callable[..., Any],
        size: int,
        per_host: int,
        args: tuple[Any, ...],
        options: Options,
    ) -> None:
        self._calls, self._parent, self._member, self._args = calls, calls._parent(), Member(fn), args
        self._size, self._per_host, self._starts_left = size, per_host, options.max_losses
        self._options = options._replace(retries=0, losses=0, name=options.name or name_of(fn))
        self._sent: tuple[bytes, tuple[Reference, ...], tuple[ObjectUpload, ...]] | None = None
        template = self._template()
        super().__init__(calls._futures, calls._futures.ids.task(), template, b"")
        self.stage = Stage.SENT  # the scheduler explains it
        self._start(template)

    def _template(self) -> TaskTemplate:
        gang = f"{GANG}{secrets.token_hex(8)}/{self._per_host}", float(self._size)
        needs, losses = tuple(sorted((*self._options.needs, gang))), 1 + (self._starts_left > 0)
        return self._calls._templates.template(
            self._member, self._options._replace(needs=needs, losses=losses), self._parent
        )

    def _start(self, template: TaskTemplate) -> None:
        futures = self._calls._futures
        while True:
            members = self._members_of(template)
            if members[0].template is None or futures.add(members):
                break
        self.task_id, self._members = members[0].task_id, members
        self._ended_members: list[TaskFuture] = []
        for member in members:
            member.add_done_callback(self._member_ended)
        if self.cancelled():  # by another thread
            self._stop()

    def _members_of(self, template: TaskTemplate) -> list[TaskFuture]:
        """Return the futures of all members, or a single failed future if an argument has failed."""
        futures = self._calls._futures
        sent = self._sent
        if sent is None or any(isinstance(each, TaskFuture) and each.must_embed for each in sent[1]):
            first = futures.prepare(template, self._args, {})
            if first.template is None:
                return [first]
            sent = self._sent = first.payload, first.references, first.uploads
        return [TaskFuture(futures, futures.ids.task(), template, *sent) for _ in range(self._size)]

    def _member_ended(self, ended: ScalerFuture) -> None:
        member = cast("TaskFuture", ended)
        with self._owner.condition:
            self._ended_members.append(member)
            is_last = len(self._ended_members) == len(self._members)
        if not is_last or self._state is not PENDING:
            if isinstance(member._exception, errors.TaskRejectedError):
                self._stop()  # the gang can never be complete
            return
        failures = [each for each in map(self._failure_of, self._ended_members) if each is not None]
        lost = [each for each in failures if isinstance(each, _LOST)]
        others = [each for each in failures if not isinstance(each, CancelledError)]
        reason = next(iter([*lost, *others, *failures]), None)
        if lost and self._starts_left:
            self._starts_left -= 1
            try:
                self._start(self._template())
                return
            except Exception as error:  # noqa: BLE001 (such as a closed client)
                reason = error
        with self._owner.condition:
            is_due = self.settle(None if failures else Unloaded(self._results), reason, self._members[0]._profile)
        if is_due:
            self._run_callbacks()

    def _failure_of(self, member: TaskFuture) -> BaseException | None:
        if member.cancelled():
            return CancelledError()
        if type(member._result) is Unloaded and not member._has_stayed:
            member._load()  # a result that cannot be loaded fails the gang
        if member._exception is not None and len(self._members) > 1:
            annotate(member._exception, f"rank {self._members.index(member)} of a gang of {self._size} failed")
        return member._exception

    def _results(self) -> tuple[object, BaseException | None]:
        try:
            return [member.result() for member in self._members], None
        except Exception as error:  # noqa: BLE001 (becomes the future's)
            return None, error

    def cancel(self) -> bool:
        """Cancel all members, even if they are running. Returns False if the gang had already ended."""
        is_cancelled = super().cancel()
        if is_cancelled:
            self._stop()
        return is_cancelled

    def _cancel(self) -> None:
        self.settle(None, CancelledError())

    def _stop(self) -> None:
        for member in self._members:
            member.cancel()

    def running(self) -> bool:
        """Return whether a member is running."""
        return self._state is PENDING and any(member.running() for member in self._members)

    @property
    def _has_stayed(self) -> bool:
        return type(self._result) is Unloaded and any(member._has_stayed for member in self._members)

    @property
    def _label(self) -> str:
        return f"the gang of {self._spec.name} with {counted(self._size, 'member')}"

    def _known_value(self, collection: Collection, /) -> tuple[Any] | None:
        if self._state is PENDING:
            raise errors.UsageError(f"{self!r} stands for several tasks: pass its result() instead")
        return super()._known_value(collection)
