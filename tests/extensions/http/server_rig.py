"""A secured cluster with an HTTP server for two client keys, as processes of `scaler FILE`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

from scaler.cluster.supervisor import ReservedPorts
from scaler.extensions.http.keys import token_of
from scaler.security.credential import load_credential
from scaler.security.directory import KeysDirectory
from tests.integration.launcher_rig import Launcher
from tests.waiting import until

ROOT = Path(__file__).parents[3]
SECONDS = 20
FUNCTIONS = '''
import asyncio, datetime, os, sys
from math import sqrt

from tests.waiting import wait_for_file

def double(number):
    return 2 * number

async def later(number):
    return number + 1

def fail(text):
    raise LookupError(text)

def today():
    return {"today": [datetime.date(2026, 11, 30)]}

def pairs():
    return {(1, 2): b"3"}

def raw():
    return {"bytes": b"abc"}

def nan():
    return float("nan")

def wait_for(path, notes=None):
    """Return once the file exists."""
    if notes:
        with open(notes, "a") as file:
            file.write("started\\n")
    wait_for_file(path)
    return "released"

def die():
    os._exit(1)

def leave():
    sys.exit(3)

def give_up():
    raise asyncio.CancelledError("given up")

def _private():
    return 1
'''
FILE = """
[scheduler]
bind_address = "{address}"
credentials = "{home}/keys"
state_directory = "{home}/state"

[cluster]
num_of_workers = 2

[http]
web_port = {port}
client_credentials = ["{home}/alice.credentials", "{home}/bob.credentials"]
allowed = ["http_functions:*", "operator:truediv", "os.path:join"]
allow_jobs = true
max_body_bytes = 10000
max_calls_per_key = 20
{settings}
"""


class Server:
    def __init__(self, home: Path, settings: str = "") -> None:
        keys = KeysDirectory.create(home / "keys", "test")
        self.tokens = {}
        for name in ("alice", "bob"):
            path = home / f"{name}.credentials"
            path.touch(0o600)
            path.write_text(keys.add(name, "client").to_text())
            self.tokens[name] = token_of(load_credential(path))
        (home / "http_functions.py").write_text(FUNCTIONS)
        self.keys, self.home = keys, home
        self._ports = ReservedPorts(4)
        self.address, self.port = self._ports.address(), self._ports.first + 3
        file = home / "cluster.toml"
        file.write_text(FILE.format(address=self.address, home=home, port=self.port, settings=settings))
        self.launcher = Launcher(file, {"PYTHONPATH": f"{home}{os.pathsep}{ROOT}"})
        self.alice, self.bob = (self.client(self.tokens[name]) for name in ("alice", "bob"))
        assert self.launcher.wait_ready()
        until(self.answers, SECONDS)

    def client(self, token: str = "") -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}/v1", headers=headers, timeout=SECONDS)

    def answers(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self.alice.get("/schedules").status_code == 200
        return False

    def call(self, function: str, *args: Any, wait: float = SECONDS, **fields: Any) -> dict[str, Any]:
        """Call a function with the key of alice; return the answer."""
        body = {"function": f"http_functions:{function}", "args": args, **fields}
        answer = self.alice.post("/calls", params={"wait": wait}, json=body)
        assert answer.status_code in (200, 202), answer.text
        found: dict[str, Any] = answer.json()
        return found

    def job(self, script: str, *args: str, wait: float = SECONDS) -> dict[str, Any]:
        answer = self.alice.post("/jobs", params={"wait": wait}, json={"script": script, "args": args})
        found: dict[str, Any] = answer.json()
        return found

    def component(self, kind: str) -> psutil.Process:
        return next(each for each in self.launcher.components() if each.cmdline()[-1:] == [kind])

    def close(self) -> None:
        self.alice.close()
        self.bob.close()
        if self.launcher.process.poll() is None:
            self.launcher.stop(signal.SIGINT)
        self.launcher.close()
        self._ports.release()


def events_of(client: httpx.Client, path: str, **headers: str) -> Iterator[tuple[str, Any]]:
    """Yield the events of a call, with the id of an output event, until the stream ends."""
    with client.stream("GET", f"{path}/events", headers=headers) as stream:
        name = ""
        for line in stream.iter_lines():
            field, _, text = line.partition(": ")
            if field == "event":
                name = text
            elif field == "data":
                yield name, json.loads(text)
