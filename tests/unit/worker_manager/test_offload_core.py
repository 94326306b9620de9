"""What the offload agent's core hands on, and what it tells the scheduler."""

from __future__ import annotations

import pytest

from scaler.protocol.messages import (
    Done,
    ForgetFunctions,
    Message,
    Outcome,
    Recall,
    Returned,
    Run,
    RunGroup,
    Spec,
    Started,
    Welcome,
)
from scaler.worker_manager.offload.core import HandOn, OffloadCore, Settings, Withdraw
from scaler.worker_manager.offload.setbacks import NEWS_SECONDS

FUNCTION = b"f" * 16


class Stage:
    """A core, and what it said and did."""

    def __init__(self, slots: int = 2, queue_size: int = 5, death_timeout_seconds: float = 300.0) -> None:
        self.now = 0.0
        self.core = OffloadCore(Settings(slots, queue_size, 0.0, death_timeout_seconds), self.now)
        self.core.welcomed(Welcome(False, 1, 30.0, 2.0), self.now)
        self.said: list[Message] = []
        self.pass_time(0.0)

    def turn(self) -> list[str]:
        """Settle; return what is done, as words."""
        self.core.settle(self.now)
        self.said += self.core.outbox.take_messages()
        self.core.check()
        done = []
        for command in self.core.take_commands():
            match command:
                case HandOn(item, function, _):
                    assert function == b"code"
                    done.append(f"hand on {name(item.id)}")
                case Withdraw(item):
                    done.append(f"withdraw {name(item.id)}")
        return done

    def run(self, *numbers: int, attempt: int = 1, **spec: object) -> list[str]:
        ids = [task(number) for number in numbers]
        group = RunGroup(Spec(FUNCTION, **spec), ids, [attempt] * len(ids), [b"args"] * len(ids))  # type: ignore[arg-type]
        self.core.run(Run([(FUNCTION, b"code")], [group]))
        return self.turn()

    def recall(self, *numbers: int, kill: bool) -> list[str]:
        self.core.recall(Recall([task(number) for number in numbers], [1] * len(numbers), kill))
        return self.turn()

    def finish(self, number: int, payload: bytes = b"value") -> list[str]:
        item = self.core.arrived((task(number), 1))
        if item is not None:
            self.core.done(item, Outcome.SUCCESS, payload, 7)
        return self.turn()

    def pass_time(self, seconds: float) -> list[str]:
        self.now += seconds
        self.core.tick(self.now)
        return self.turn()

    def outcomes(self) -> dict[str, Outcome]:
        return {
            name(identifier): Outcome(outcome)
            for message in self.said
            if isinstance(message, Done)
            for identifier, outcome in zip(message.ids, message.outcomes, strict=True)
        }

    def returned(self, started: bool) -> list[str]:
        return [
            name(identifier)
            for message in self.said
            if isinstance(message, Returned)
            for identifier, flag in zip(message.ids, message.started, strict=True)
            if flag is started
        ]

    def text(self, number: int) -> str:
        [text] = [
            payload.decode()
            for message in self.said
            if isinstance(message, Done)
            for identifier, payload in zip(message.ids, message.payloads, strict=True)
            if identifier == task(number)
        ]
        return text


def task(number: int) -> bytes:
    return number.to_bytes(16, "big")


def name(identifier: bytes) -> str:
    return str(int.from_bytes(identifier, "big"))


def key(number: int) -> tuple[bytes, int]:
    return task(number), 1


def test_as_many_are_handed_on_as_there_are_slots_and_the_next_when_one_ends() -> None:
    stage = Stage(slots=2)
    assert stage.run(1, 2, 3) == ["hand on 1", "hand on 2"]
    assert stage.finish(1) == ["hand on 3"]
    assert stage.outcomes() == {"1": Outcome.SUCCESS}


def test_more_than_the_queue_holds_is_given_back() -> None:
    stage = Stage(slots=1, queue_size=1)
    stage.run(1, 2, 3)
    assert stage.returned(started=False) == ["3"]


def test_a_task_whose_function_is_not_known_is_lost_and_the_others_go_on() -> None:
    stage = Stage(slots=1)
    stage.run(1, 2)
    stage.core.undefine(ForgetFunctions([FUNCTION]))
    stage.finish(1)
    assert stage.outcomes()["2"] is Outcome.OBJECT_LOST


def test_a_recall_takes_what_is_queued_and_lets_go_on_what_is_out() -> None:
    stage = Stage(slots=1)
    stage.run(1, 2)
    assert stage.recall(1, 2, kill=False) == []
    assert (stage.returned(started=False), stage.returned(started=True)) == (["2"], ["1"])
    stage.finish(1)
    assert stage.outcomes() == {"1": Outcome.SUCCESS}


def test_a_recall_that_kills_withdraws_what_is_out_and_drops_what_it_still_says() -> None:
    stage = Stage(slots=1)
    stage.run(1, 2)
    assert stage.recall(1, kill=True) == ["withdraw 1", "hand on 2"]
    stage.finish(1)
    stage.core.failed(key(1), Outcome.PROCESSOR_DIED, "killed", 0.0, 0.5)
    stage.turn()
    assert stage.outcomes() == {"1": Outcome.CANCELLED}


def test_a_result_that_is_on_its_way_to_the_storage_is_not_recalled_and_takes_no_slot() -> None:
    stage = Stage(slots=1)
    stage.run(1, 2)
    item = stage.core.arrived(key(1))
    assert item is not None
    assert stage.turn() == ["hand on 2"]
    assert stage.recall(1, kill=True) == []
    stage.core.done(item, Outcome.SUCCESS, b"stored")
    stage.turn()
    assert stage.outcomes() == {"1": Outcome.SUCCESS}


def test_a_result_of_another_attempt_or_one_that_comes_twice_is_dropped() -> None:
    stage = Stage()
    stage.run(1)
    assert stage.core.arrived((task(1), 2)) is None
    stage.finish(1)
    assert stage.core.arrived(key(1)) is None


def test_what_the_executor_did_not_take_comes_first_when_it_is_tried_again_and_later_each_time() -> None:
    stage = Stage(slots=2)
    stage.run(1, 2, 3)
    stage.core.not_taken([key(1), key(2)], "throttled", stage.now, 0.5)
    assert stage.core.setbacks.text == "tasks cannot be handed on: throttled; trying again"
    assert stage.turn() == ["hand on 1", "hand on 2"]
    stage.core.not_taken([key(1)], "throttled", stage.now, 0.5)
    assert stage.turn() == []
    wait = stage.core.wake_at - stage.now
    assert 0 < wait < 1
    assert stage.pass_time(wait) == ["hand on 1"]
    stage.core.taken()
    assert stage.core.setbacks.text == ""
    assert stage.outcomes() == {}


def test_tasks_that_come_after_a_refusal_do_not_wait_out_its_long_pause() -> None:
    stage = Stage(slots=9)
    stage.run(1)
    for _ in range(6):
        stage.core.not_taken([key(1)], "too large", stage.now, 0.5)
        stage.now += stage.core.setbacks.wait_seconds(stage.now)
        stage.core.heard(stage.now)
        stage.turn()
    stage.core.not_taken([key(1)], "too large", stage.now, 0.5)
    stage.turn()
    assert stage.core.setbacks.wait_seconds(stage.now) > 100
    assert stage.pass_time(NEWS_SECONDS) == [], "nothing is new"
    assert stage.run(2) == ["hand on 1", "hand on 2"]
    stage.core.not_taken([key(1), key(2)], "it is down", stage.now, 0.5)
    assert stage.pass_time(NEWS_SECONDS) == []
    assert stage.run(3) == ["hand on 1", "hand on 2", "hand on 3"]
    stage.core.not_taken([key(1), key(2), key(3)], "it is down", stage.now, 0.5)
    assert stage.run(4) == [], "it is asked no more often than that"
    assert stage.pass_time(NEWS_SECONDS) == ["hand on 1", "hand on 2", "hand on 3", "hand on 4"]


def test_what_was_not_taken_while_it_drains_is_given_back() -> None:
    stage = Stage()
    stage.run(1)
    stage.core.drain("no longer needed")
    stage.core.not_taken([key(1)], "throttled", stage.now, 0.5)
    stage.turn()
    assert stage.returned(started=False) == ["1"]
    assert stage.core.ending is not None


def test_lost_executions_are_told_as_they_are_and_charged_only_where_they_may_have_run() -> None:
    stage = Stage(slots=3)
    stage.run(1)
    stage.run(2)
    stage.run(3, retries=0)
    stage.core.failed(key(1), Outcome.PROCESSOR_DIED, "exit code 1", 0.0, 0.5)
    stage.core.failed(key(2), Outcome.NOT_STARTED, "host lost", 0.0, 0.5)
    stage.core.failed(key(3), Outcome.NOT_STARTED, "host lost", 0.0, 0.5)
    stage.turn()
    assert stage.outcomes() == {"1": Outcome.PROCESSOR_DIED, "2": Outcome.NOT_STARTED, "3": Outcome.WORKER_LOST}
    assert stage.text(2) == "host lost"


def test_tasks_that_are_lost_again_and_again_are_handed_on_less_often_until_one_ends_well() -> None:
    stage = Stage(slots=2)
    for number in range(1, 5):
        stage.run(number)
        stage.core.failed(key(number), Outcome.NOT_STARTED, "session aborted", stage.now, 0.5)
        stage.pass_time(0.001)
        if number > 1:
            break
    assert stage.run(9) == []
    assert stage.core.setbacks.text == "tasks are lost again and again: session aborted"
    assert stage.pass_time(2.0) == ["hand on 9"]
    stage.finish(9)
    assert stage.core.setbacks.text == ""
    stage.run(10)
    stage.core.failed(key(10), Outcome.NOT_STARTED, "session aborted", stage.now, 0.5)
    assert stage.run(11) == ["hand on 11"]


def test_many_that_are_lost_together_count_as_one_loss() -> None:
    stage = Stage(slots=4)
    stage.run(1, 2, 3, 4)
    for number in range(1, 5):
        stage.core.failed(key(number), Outcome.NOT_STARTED, "host lost", stage.now + number * 0.001, 0.5)
    stage.now = 0.01
    assert stage.run(5) == ["hand on 5"]


def test_the_time_limit_counts_from_the_start_and_not_from_when_it_was_handed_on() -> None:
    stage = Stage()
    stage.run(1, timeout_seconds=5.0)
    assert stage.pass_time(20.0) == []
    stage.core.started(key(1), stage.now)
    stage.core.heard(stage.now)
    assert stage.core.wake_at <= stage.now + 5.0
    assert stage.pass_time(4.9) == []
    assert stage.pass_time(0.2) == ["withdraw 1"]
    assert stage.outcomes() == {"1": Outcome.TIMED_OUT}
    assert stage.text(1) == "the task ran longer than its time limit of 5 s and was ended"


def test_only_tasks_that_run_for_a_while_are_said_to_have_started() -> None:
    stage = Stage()
    stage.run(1, 2)
    stage.core.started(key(1), stage.now)
    stage.core.started(key(2), stage.now)
    stage.finish(1)
    stage.pass_time(0.06)
    assert [message.ids for message in stage.said if isinstance(message, Started)] == [[task(2)]]


def test_a_drained_agent_gives_back_what_is_queued_and_ends_when_the_rest_has_ended() -> None:
    stage = Stage(slots=1)
    stage.run(1, 2)
    stage.core.drain("no longer needed")
    stage.turn()
    assert stage.returned(started=False) == ["2"]
    assert stage.core.ending is None
    stage.finish(1)
    assert stage.core.ending is not None
    assert stage.core.ending.exit_code == 0


def test_what_still_runs_after_the_grace_is_withdrawn_and_charged_to_nobody() -> None:
    stage = Stage()
    stage.run(1)
    stage.run(2, retries=0)
    stage.core.stop("the worker was told to end", 5.0, stage.now)
    assert stage.pass_time(4.9) == []
    assert stage.pass_time(0.2) == ["withdraw 1", "withdraw 2"]
    assert stage.outcomes() == {"1": Outcome.NOT_STARTED, "2": Outcome.WORKER_LOST}
    assert stage.core.ending is not None


def test_in_silence_nothing_is_handed_on_then_what_may_not_run_twice_is_withdrawn() -> None:
    stage = Stage(slots=2)
    stage.run(1, retries=0)
    stage.run(2)
    stage.run(3)
    for _ in range(21):
        assert stage.pass_time(1.0) == []
    stage.finish(2)
    assert stage.outcomes() == {"2": Outcome.SUCCESS}
    assert [stage.pass_time(1.0) for _ in range(4)] == [[], [], [], ["withdraw 1"]]
    stage.core.heard(stage.now)
    assert stage.turn() == ["hand on 3"]
    assert stage.outcomes()["1"] is Outcome.WORKER_LOST


def test_an_agent_that_hears_nothing_for_too_long_ends() -> None:
    stage = Stage(death_timeout_seconds=40.0)
    for _ in range(41):
        stage.pass_time(1.0)
    assert stage.core.ending is not None
    assert stage.core.ending.exit_code == 1


def test_an_agent_that_the_scheduler_forgot_ends_when_tasks_are_out_and_starts_afresh_when_not() -> None:
    idle, busy = Stage(), Stage()
    idle.run(1)
    idle.finish(1)
    busy.run(1)
    for stage in (idle, busy):
        stage.core.welcomed(Welcome(False, 2, 30.0, 2.0), stage.now)
    assert idle.run(2) == ["hand on 2"]
    assert busy.turn() == ["withdraw 1"]
    # The scheduler takes it for a new worker until it hears that it leaves.
    assert busy.run(1, 2) == []
    assert busy.returned(started=False) == ["1", "2"]
    assert busy.core.ending is None
    busy.core.drain("")
    busy.turn()
    assert busy.core.ending is not None
    assert "another one must take its place" in busy.core.ending.text
    assert busy.outcomes() == {}


def test_a_result_that_was_being_stored_when_the_scheduler_forgot_this_worker_is_dropped() -> None:
    stage = Stage()
    stage.run(1)
    item = stage.core.arrived(key(1))
    assert item is not None
    stage.core.welcomed(Welcome(False, 2, 30.0, 2.0), stage.now)
    stage.run(1)
    stage.core.done(item, Outcome.SUCCESS, b"late")
    stage.turn()
    assert stage.outcomes() == {}


@pytest.mark.parametrize("text", ["", "the queue is full"])
def test_the_executors_trouble_is_shown_as_long_as_it_lasts(text: str) -> None:
    stage = Stage()
    stage.core.setbacks.executors_own = "no capacity"
    stage.core.setbacks.executors_own = text
    assert stage.core.setbacks.text == text
