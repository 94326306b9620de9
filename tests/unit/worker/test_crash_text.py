"""Crash reports: one line with the location in the user's code, and the user's frames."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import scaler
from scaler.worker.agent.processors import with_crash

SEGV = "killed by signal 11 (SIGSEGV)"
OWN = Path(scaler.__file__).parent
STDLIB = sysconfig.get_path("stdlib")


def crash(*frames: str) -> str:
    return "\n".join(["Fatal Python error: Segmentation fault", "", "Stack (most recent call first):", *frames])


def test_first_line_names_the_innermost_user_frame() -> None:
    text = crash(
        f'  File "{STDLIB}/ctypes/__init__.py", line 519 in string_at',
        '  File "/home/me/work.py", line 17 in segv',
        '  File "/home/me/work.py", line 30 in main',
        f'  File "{OWN}/worker/processor/main.py", line 414 in _call',
        '  File "<frozen runpy>", line 198 in _run_module_as_main',
    )
    assert with_crash(SEGV, text).splitlines() == [
        "SIGSEGV in segv (work.py:17)",
        f'  File "{STDLIB}/ctypes/__init__.py", line 519 in string_at',
        '  File "/home/me/work.py", line 17 in segv',
        '  File "/home/me/work.py", line 30 in main',
    ]


def test_crash_without_user_frames_keeps_its_text() -> None:
    assert with_crash(SEGV, "") == SEGV
    assert with_crash(SEGV, crash("  <no Python frame>")) == f"{SEGV}\n{crash('  <no Python frame>')}"
