"""Runs one scenario once, in the interpreter of the measured system. Started by `one_run.py`.

    python -m benchmarks.child ROW ADAPTOR ARGUMENTS ANSWER

ARGUMENTS is a JSON object. ANSWER is a file, because systems also write to standard output.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main(row: str, adaptor: str, arguments: str, answer: str) -> None:
    scenario = importlib.import_module(f"benchmarks.{row}").scenario
    start = importlib.import_module(f"benchmarks.systems.{adaptor}").Adaptor
    figures = scenario(start, **json.loads(arguments))
    Path(answer).write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
