"""Imported by every Python process with this directory in PYTHONPATH: records the executed functions of Scaler.

TASK_PATH_FLAG names a file of one byte that all processes map: 0 records nothing, 1 to 254 is the number of a window,
255 makes each process write its record to TASK_PATH_RECORDS at its next call.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

DONE = 255
_ROOT = str(Path(os.environ["TASK_PATH_ROOT"])) + os.sep
_RECORDS = Path(os.environ["TASK_PATH_RECORDS"])
_BORN_AS = os.getpid()

with Path(os.environ["TASK_PATH_FLAG"]).open("r+b") as _file:
    _flag = mmap.mmap(_file.fileno(), 1)

_seen: dict[CodeType, set[int]] = {}
_recorder = [_BORN_AS]
_written = [0]


def _profile(frame: FrameType, event: str, _argument: object) -> None:
    if event != "call" or not _flag[0]:
        return
    process = os.getpid()
    if _recorder[0] != process:  # forked: records of the parent belong to the parent
        _recorder[0] = process
        _seen.clear()
    if _flag[0] == DONE:
        _write(process)
        return
    code = frame.f_code
    if code.co_filename.startswith(_ROOT):
        _seen.setdefault(code, set()).add(_flag[0])


def _write(process: int) -> None:
    if _written[0] == process:
        return
    _written[0] = process
    functions = [
        [code.co_filename[len(_ROOT) :], code.co_qualname, len(windows)]
        for code, windows in list(_seen.items())
        if code.co_name == "<lambda>" or not code.co_name.startswith("<")  # comprehensions belong to their function
    ]
    record = {"command": sys.argv[0], "forked": process != _BORN_AS, "functions": functions}
    target = _RECORDS / f"{process}.json"
    target.with_suffix(".part").write_text(json.dumps(record))
    target.with_suffix(".part").rename(target)


threading.setprofile(_profile)
sys.setprofile(_profile)
