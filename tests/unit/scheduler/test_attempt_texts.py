"""A failed task states its cause in one line, then its attempts, with equal ones merged."""

from __future__ import annotations

from scaler.scheduler.core.attempt_texts import at_limit, together

CRASH = 'the processor that ran the task died: SIGSEGV in segv (work.py:17)\n  File "/home/me/work.py", line 17 in segv'


def test_equal_attempts_are_shown_once() -> None:
    texts = [f"attempt {number} on w-1 (box, pid 7): {CRASH}" for number in range(1, 5)]
    assert at_limit(texts, 4, "retries", 3).splitlines() == [
        "SIGSEGV in segv (work.py:17), 4 attempts on w-1 (box, pid 7), retries=3",
        '  File "/home/me/work.py", line 17 in segv',
    ]


def test_similar_attempts_are_merged_and_different_ones_listed() -> None:
    texts = [f"attempt 1 on a: {CRASH}", "attempt 2: worker b was gone for 3.1 s", f"attempt 3 on c: {CRASH}"]
    assert together(texts).splitlines() == [
        "attempt 1 on a, attempt 3 on c: the processor that ran the task died: SIGSEGV in segv (work.py:17)",
        '  File "/home/me/work.py", line 17 in segv',
        "attempt 2: worker b was gone for 3.1 s",
    ]


def test_run_once_task_states_its_cause_once_and_that_it_may_have_run() -> None:
    died = "attempt 1 on a: the processor that ran the task died: killed"
    assert at_limit([died], 1, "retries", 0) == "killed, 1 attempt on a, retries=0; it may have run"
