"""Measures encoding and decoding: per task in batches of 500, and per message for small messages.

Run `python benchmarks/codec.py`. Figures are the best of five rounds on one core.
"""

from __future__ import annotations

import subprocess
import sys
import timeit

from scaler.object_storage.messages import GetObject
from scaler.protocol import messages as m
from scaler.protocol.codec import decode, encode

TASKS = 500
ROUNDS = 5


def best(action: object, per: int) -> float:
    """Return microseconds per item in the fastest round."""
    timer = timeit.Timer(action)  # type: ignore[arg-type]
    number = max(1, timer.autorange()[0] // 4)
    return min(timer.repeat(ROUNDS, number)) / number / per * 1e6


def batches(tasks: int) -> list[m.Message]:
    """Return the four messages of a task's path, each for this many tasks."""
    spec = m.Spec(function=bytes(16), name="module.function")
    ids = [index.to_bytes(16, "big") for index in range(tasks)]
    payloads = [bytes(40)] * tasks
    ones, zeros, durations = [1] * tasks, [0] * tasks, [1_234] * tasks
    return [
        m.Submit([], [m.TaskGroup(spec, ids, payloads)], 7),
        m.Run([], [m.RunGroup(spec, ids, ones, payloads)]),
        m.Done(ids, ones, zeros, payloads, durations, began_us=[10**12] * tasks, lanes=ones),
        m.Finished(1, ids, zeros, payloads, durations),
    ]


def rare_messages() -> list[m.Message]:
    """Return messages that are rare per peer but add up over many peers."""
    processor = m.ProcessorStatus(4321, 12.5, 100_000_000, True, False, bytes(16), 0.5)
    return [
        m.Heartbeat(1.0),
        m.WorkerHeartbeat(1.0, 2.0, 30_000_000, 3, 0.001, [processor]),
        m.Acknowledge(),
        m.Recall([bytes(16)], [1], False),
        m.Cancel([bytes(16)]),
        GetObject(1, bytes(16), 5.0),
    ]


def show(messages: list[m.Message], per: int, unit: str) -> None:
    print(f"\n{'':18}{'bytes':>10}{'encode':>10}{'decode':>10}   us per {unit}")
    for message in messages:
        body = encode(message)
        there, back = best(lambda message=message: encode(message), per), best(lambda body=body: decode(body), per)
        print(f"{type(message).__name__:18}{len(body) / per:10.1f}{there:10.3f}{back:10.3f}")


def main() -> None:
    show(batches(TASKS), TASKS, f"task, {TASKS} tasks")
    show(batches(1), 1, "message, 1 task")
    show(rare_messages(), 1, "message")
    code = "import time; t = time.perf_counter(); import scaler.protocol.codec; print(time.perf_counter() - t)"
    imports = [
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout) for _ in range(5)
    ]
    print(f"\nimport of the codec: {min(imports) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
