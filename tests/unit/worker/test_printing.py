"""Printed output of a task: sent by line, complete at its end, and free for tasks that print nothing."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from scaler.offload.job import printed_output
from scaler.worker.frames import DATAGRAM_BYTES, ToAgent, unpack_note
from scaler.worker.processor.capture import HEAD_BYTES, TAIL_BYTES, PrintForwarder

TASK, OTHER = bytes(range(16)), bytes(16)


class Task:
    """A printing task, and the data sent to the agent."""

    def __init__(self) -> None:
        self.running = TASK
        self.datagrams: list[bytes] = []
        self.printing = PrintForwarder(lambda: self.running, self.datagrams.append)

    def say(self, *texts: str, is_stderr: bool = False) -> None:
        for text in texts:
            self.printing.write(is_stderr, text)

    @property
    def sent(self) -> list[tuple[bool, bytes]]:
        notes = [unpack_note(datagram) for datagram in self.datagrams]
        assert {(note.kind, note.identifier) for note in notes} <= {(ToAgent.PRINTED, TASK)}
        return [(note.is_stderr, note.text) for note in notes]


def test_line_printed_in_parts_is_sent_when_complete() -> None:
    task = Task()
    task.say("half ", "a line")
    assert task.sent == []
    task.say("\n", "two\nlines\n")
    task.say("wrong\n", is_stderr=True)
    assert task.sent == [(False, b"half a line\n"), (False, b"two\nlines\n"), (True, b"wrong\n")]


def test_incomplete_last_line_is_sent_at_the_tasks_end() -> None:
    task = Task()
    task.say("no end")
    task.say("nor here", is_stderr=True)
    assert task.printing.has_partial_line
    task.printing.flush()
    assert task.sent == [(False, b"no end"), (True, b"nor here")]
    assert not task.printing.has_partial_line
    task.printing.flush()
    assert len(task.sent) == 2


def test_nothing_is_sent_between_tasks_for_captured_tasks_or_after_a_fork() -> None:
    task = Task()
    task.running = b""
    task.say("between\n")
    task.running = TASK
    task.printing.is_captured = True
    task.say("captured\n")
    task.printing.is_captured = False
    pid = os.fork()
    if not pid:
        task.say("forked\n")
        os._exit(len(task.datagrams))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert task.sent == []


def test_text_of_any_size_becomes_datagrams_that_count_omissions() -> None:
    task = Task()
    task.say("a" * HEAD_BYTES + "b" * 1_000_000 + "c" * TAIL_BYTES + "\n")
    assert max(map(len, task.datagrams)) < DATAGRAM_BYTES
    head, tail = map(unpack_note, task.datagrams)
    assert (head.truncated, head.text) == (0, b"a" * HEAD_BYTES)
    assert (tail.truncated, tail.text) == (1_000_001, b"c" * (TAIL_BYTES - 1) + b"\n")


def test_simultaneous_prints_of_task_threads_are_sent_once() -> None:
    task = Task()

    def print_lines(name: str) -> None:
        for number in range(2000):
            task.say(f"{name}{number}", "\n")

    threads = [threading.Thread(target=print_lines, args=(name,)) for name in "abc"]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    task.printing.flush()
    sent = b"".join(text for _, text in task.sent)
    assert len(sent) == sum(len(f"{name}{number}\n") for name in "abc" for number in range(2000))
    assert sent.count(b"\n") == 6000


# -- at the far end of an offloaded task


def test_output_in_the_context_is_recorded_and_passed_through(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    texts = bytearray(), bytearray()
    with printed_output(texts):
        print("out")
        sys.stderr.writelines(["a", "b"])
        assert (sys.stdout, sys.stderr) == before
    print("after")
    assert [bytes(text) for text in texts] == [b"out\n", b"ab"]
    assert capsys.readouterr() == ("out\nafter\n", "ab")
