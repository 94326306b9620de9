"""Definitions in a program's `__main__` are sent, or an error names the part that cannot be sent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scaler import SchedulerClusterCombo

PROGRAM = '''
import dataclasses, functools, sys, threading
from scaler import Client

class Cached:
    calls = 0

    @functools.cached_property
    def twice(self):
        """Documented."""
        type(self).calls += 1
        return 2

class Slots:
    __slots__ = ("__private", "number")

    def __init__(self, number):
        self.number = self.__private = number

@dataclasses.dataclass(slots=True)
class SlotsData:
    number: int = 3

lock = threading.Lock()

class Locked:
    lock = lock

    def call(self):
        return 1

def use():
    return lock

def use_deep():
    return use()

def use_class():
    return Locked().call()

def look(cached):
    return cached.twice, cached.twice, cached.calls, Cached.twice.__doc__, vars(cached)

def refusal(function):
    try:
        client.submit(function)
    except TypeError as error:
        return str(error).partition(" cannot be serialized")[0].partition(" at ")[2]

with Client(sys.argv[1]) as client:
    assert client.submit(look, Cached()).result() == (2, 2, 1, "Documented.", {"twice": 2})
    assert client.submit(Cached).result().twice == 2
    assert client.submit(Slots, 4).result().number == 4
    assert client.submit(SlotsData).result() == SlotsData(3)
    assert not client.submit(lambda: hasattr(Slots(1), "__dict__")).result()
    assert refusal(use) == "global lock (_thread.lock)", refusal(use)
    assert refusal(use_deep) == "global use > global lock (_thread.lock)", refusal(use_deep)
    assert refusal(use_class) == "global Locked.lock (_thread.lock)", refusal(use_class)
    assert refusal(functools.partial(print, [lock])) == ".args[0][0] (_thread.lock)"
    assert refusal((lambda inside: lambda: inside)(lock)) == "variable inside (_thread.lock)"
    assert refusal(lambda: client) == "global client (scaler.client.client.Client)"
    print("all is as it should be")
'''


def test_main_classes_and_functions_are_sent_or_the_obstacle_named(
    cluster: SchedulerClusterCombo, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), cluster.get_address()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "all is as it should be\n", done.stderr
