"""Runs on a host while its manager is connected: starts, stops, and lists the units there. Each line of input,
including heartbeats, is JSON: the servers' keys, and optionally `"start": document, "unit_id": id, "credential": text`,
or `"stop": id`. When the input ends, the watcher stops all units and exits."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections import deque
from typing import Any

from scaler.config.worker import WorkerConfig
from scaler.errors import ScalerError
from scaler.processes import end_processes_with
from scaler.protocol.messages import UnitState
from scaler.registry import OwnFile
from scaler.security.keys import KeyPair
from scaler.security.run import FoundKeys, publish
from scaler.worker_manager.backend import ENDED, ENDED_SHOWN, Capacity
from scaler.worker_manager.baremetal_native import COMMAND, LocalAgents
from scaler.worker_manager.ssh.command import MARK, UNITS_VARIABLE

POLL_SECONDS = 1.0
READ_BYTES = 64 * 1024
STDIN, STDOUT, STDERR = 0, 1, 2


class HostWatcher:
    """The units of one host. silence_seconds: exit after this time without input."""

    def __init__(self, stdout: int, silence_seconds: float) -> None:
        self._stdout = stdout
        self._silence_seconds = silence_seconds
        self._is_ending = False
        self._partial = b""
        self._document: WorkerConfig | None = None
        self._credential = ""
        self._started = 0  # number of start requests received, so that the manager recognizes units that have ended
        self._refused: deque[tuple[str, str, str]] = deque(maxlen=ENDED_SHOWN)
        self._published: list[dict[str, Any]] = []
        self._keys: list[OwnFile] = []  # files with the keys, for units to find until closed
        self._written = ""
        self._outgoing = b""  # unwritten rest of a line
        self._agents = LocalAgents(
            Capacity.of_units(1, None), "ssh", COMMAND, self._document_of, credential=lambda: self._credential
        )

    def run(self) -> None:
        self._write("ready")
        poller = select.poll()
        poller.register(STDIN, select.POLLIN)
        poller.register(self._agents.fileno(), select.POLLIN)
        received_at = time.monotonic()
        while True:
            if any(descriptor == STDIN for descriptor, _ in poller.poll(POLL_SECONDS * 1000)):
                data = os.read(STDIN, READ_BYTES)
                received_at = time.monotonic()
                if data:
                    self._take(data)
                else:
                    poller.unregister(STDIN)
                    self._end()
            if time.monotonic() - received_at > self._silence_seconds:
                self._end()
            for file in self._keys:
                file.refresh()
            units = self._agents.list()
            rows = [(unit.unit_id, unit.state.value, unit.reason) for unit in units] + list(self._refused)
            self._write(f"units {json.dumps({'started': self._started, 'units': rows})}")
            if self._is_ending and all(unit.state in ENDED for unit in units):
                self._agents.close()
                return

    def _take(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            self._publish(message["keys"])
            if "start" in message and not self._is_ending:
                self._start(message["start"], message["unit_id"], message["credential"])
            if "stop" in message:
                self._agents.stop([message["stop"]])

    def _start(self, document: str, unit_id: str, credential: str) -> None:
        self._started += 1
        self._credential = credential
        try:
            self._document = WorkerConfig.from_json(document)
            self._agents.start(1)
        except ScalerError as error:
            self._refused.append((unit_id, UnitState.FAILED.value, str(error)))

    def _document_of(self, _unit_id: str, _slots: int) -> WorkerConfig:
        assert self._document is not None
        return self._document

    def _publish(self, rows: list[dict[str, Any]]) -> None:
        if rows != self._published:
            self._published = rows
            made = [publish(row["addresses"], FoundKeys(row["server"], KeyPair(*row["own"]))) for row in rows]
            self._keys, old = made, self._keys
            for file in old:
                file.close()

    def _end(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._agents.stop([unit.unit_id for unit in self._agents.list()])

    def _write(self, text: str) -> None:
        """Write a line if it differs from the last one. Postpones the rest if the pipe is full, because `run` must not
        block."""
        if text != self._written and not self._outgoing:
            self._written, self._outgoing = text, f"{MARK}{text}\n".encode()
        try:
            while self._outgoing:
                self._outgoing = self._outgoing[os.write(self._stdout, self._outgoing) :]
        except BlockingIOError:
            pass
        except ConnectionError:
            self._end()


def main() -> int:
    # The watcher of an earlier connection may not have detected the end of that connection.
    end_processes_with([f"{UNITS_VARIABLE}={os.environ.get(UNITS_VARIABLE)}"])
    stdout = os.dup(STDOUT)
    os.set_blocking(stdout, False)
    os.dup2(STDERR, STDOUT)  # the manager must not read the units' output
    HostWatcher(stdout, float(sys.argv[1])).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
