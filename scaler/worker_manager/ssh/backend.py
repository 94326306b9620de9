"""The backend of the type ssh: connects to hosts, and assigns units to ready hosts. While units wait for a slot, the
backend connects to all hosts, and retries failed hosts with increasing delays. If no host can become ready, the units
fail with each host's reason."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import select
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scaler.backoff import Backoff
from scaler.config.addresses import beside, is_loopback, local_address
from scaler.errors import UsageError
from scaler.net.local import has_local_listener
from scaler.net.versions import python_version
from scaler.protocol.messages import UnitState
from scaler.security.run import FoundKeys, find
from scaler.worker_manager.backend import ENDED, BackendError, Capacity, EndedUnits, Unit, units_credential
from scaler.worker_manager.ssh import Host, SshConfig, all_hosts
from scaler.worker_manager.ssh.command import NO_FORWARD, Wheel, forwarded_port, problem_text, ssh_command, watch_script
from scaler.worker_manager.ssh.connection import HostConnection
from scaler.worker_manager.wheel import build_wheel

CLOSE_SECONDS = 2.0  # time until connections that have not closed after the end of their input are killed
CORES_SECONDS = 5.0  # time limit for hosts to report their cores to a starting manager
ANSWER_SECONDS = 60.0  # time limit from the start of ssh to the start of the script in the host's shell
RETRY = Backoff(1.0, 60.0, jitter=0.0)
STEADY_SECONDS = 60.0  # a connection that lasted this long is retried immediately

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Unit:
    number: int  # number of the start request on its host; 0 while it waits for a host
    started_at: float
    state: UnitState
    reason: str = ""
    is_stopping: bool = False


@dataclass(slots=True)
class _Link:
    host: Host
    slots: int  # 0 until the host reports its cores
    connection: HostConnection | None = None
    connected_at: float = 0.0
    ports: dict[str, int] = field(default_factory=dict)  # port on the host, by forwarded address
    has_answered: bool = False
    ready_at: float | None = None
    starts: int = 0  # start requests sent through this connection
    sent_at: float = 0.0
    failures: int = 0
    retry_at: float = 0.0
    problem: str = ""
    units: dict[str, _Unit] = field(default_factory=dict)

    @property
    def free(self) -> int:
        return max(0, self.slots - len(self.units))


class SshBackend:
    """Raises UsageError for invalid hosts, and ConfigError for invalid credentials."""

    def __init__(self, config: SshConfig) -> None:
        self._config = config
        self._links = [_Link(host, host.slots or config.slots_per_host) for host in all_hosts(config.hosts)]
        self._prefix = f"{re.sub('[^A-Za-z0-9_.-]', '_', config.worker_manager_id)}-{os.urandom(3).hex()}"
        self._count = 0
        self._waiting: dict[str, _Unit] = {}
        self._ended = EndedUnits()
        self._watched = select.epoll()
        self._environment = config.ssh_python or _wheel_for(config)
        self._credential = units_credential(config)
        self._forwards: list[str] = []
        self._is_checked = False  # workers can reach the object storage and have keys for the scheduler
        if config.tunnel:
            scheduler = config.worker_scheduler_address
            storage = config.object_storage_address or beside(scheduler, 1, "")
            self._forwards = [scheduler, storage]
        self._keys: Sequence[FoundKeys | None] = [None] * len(self._forwards)  # keys found locally
        self._learn_cores()
        known = [link.slots for link in self._links if link.slots]
        # Assume that a host that has not answered has as many slots as the largest known host.
        slots = sum(link.slots or max(known, default=1) for link in self._links)
        limit = config.max_task_concurrency
        self.capacity = Capacity.of_units(1, slots if limit < 0 else min(slots, limit))

    def start(self, count: int) -> list[str]:
        now = time.monotonic()
        self._check()
        if all(self._is_out(link, now) for link in self._links):
            raise BackendError(f"no host can be used: {self._problems()}")
        ids = []
        for _ in range(count):
            self._count += 1
            ids.append(f"{self._prefix}-{self._count}")
            self._waiting[ids[-1]] = _Unit(0, now, UnitState.PENDING)
        self._place(now)
        return ids

    def stop(self, unit_ids: Sequence[str]) -> None:
        now = time.monotonic()
        for unit_id in unit_ids:
            if unit_id in self._waiting:
                self._end(self._waiting, unit_id, UnitState.STOPPED, "stopped", now)
        for link in self._links:
            for unit_id in unit_ids:
                unit = link.units.get(unit_id)
                if unit is not None and not unit.is_stopping:
                    unit.is_stopping = True
                    self._send(link, {"stop": unit_id}, now)

    def list(self) -> list[Unit]:
        now = time.monotonic()
        for link in self._links:
            self._receive(link, now)
        self._refresh(now)
        self._place(now)
        alive = [
            Unit(unit_id, UnitState.STOPPING if unit.is_stopping else unit.state, 1, now - unit.started_at, unit.reason)
            for units in (self._waiting, *(link.units for link in self._links))
            for unit_id, unit in units.items()
        ]
        return alive + self._ended.shown(now)

    def fileno(self) -> int:
        return self._watched.fileno()

    def close(self) -> None:
        connections = [link.connection for link in self._links if link.connection is not None]
        for connection in connections:
            connection.end_input()
        until = time.monotonic() + CLOSE_SECONDS
        for connection in connections:
            connection.close(max(0.0, until - time.monotonic()))
        self._watched.close()

    def _learn_cores(self) -> None:
        until = time.monotonic() + CORES_SECONDS
        asked = [link for link in self._links if not link.slots]
        for link in asked:
            self._connect(link, time.monotonic())
        while any(not link.slots and link.connection is not None for link in asked):
            if (left := until - time.monotonic()) <= 0:
                break
            self._watched.poll(left)
            for link in asked:
                self._receive(link, time.monotonic())

    def _connect(self, link: _Link, now: float) -> None:
        mark = f"{self._prefix}-{self._links.index(link)}"
        script = watch_script(mark, self._config.death_timeout_seconds, python_version(), self._environment)
        link.connected_at, link.has_answered, link.ready_at, link.starts = now, False, None, 0
        link.ports = {}
        try:
            command = ssh_command(link.host, self._config.ssh_options, self._targets, script)
            link.connection = HostConnection(command, self._watched)
        except OSError as error:
            self._failed(link, f"{link.host}: cannot start ssh: {error}", now)

    @property
    def _targets(self) -> Sequence[str]:
        return [local_address(address).removeprefix("tcp://") for address in self._forwards]

    def _receive(self, link: _Link, now: float) -> None:
        connection = link.connection
        if connection is None:
            return
        for line in connection.receive():
            try:
                self._handle(link, connection, line, now)
            except (ValueError, TypeError, KeyError, RecursionError):
                connection.close()
                self._failed(link, f"{link.host}: unexpected answer {line[:80]!r}: check scaler's version there", now)
                return
        link.ports |= dict(filter(None, (forwarded_port(line, self._targets) for line in connection.new_lines)))
        if self._forwards and any(NO_FORWARD in line for line in connection.new_lines):
            connection.close()
            self._failed(link, problem_text(link.host, [NO_FORWARD], ""), now)
            return
        if connection.how_ended:
            # When an established connection ends, ssh writes one line.
            lines = list(connection.last_lines)[0 if link.ready_at is None else -1 :]
            self._failed(link, problem_text(link.host, lines, connection.how_ended), now)
        elif not link.has_answered and now - link.connected_at >= ANSWER_SECONDS:
            connection.close()
            why = f"no answer within {ANSWER_SECONDS:g} s: try `ssh {link.host.destination} nproc`"
            self._failed(link, problem_text(link.host, list(connection.last_lines), why), now)

    def _handle(self, link: _Link, connection: HostConnection, line: str, now: float) -> None:
        verb, _, rest = line.partition(" ")
        match verb:
            case "cores":
                link.has_answered = True
                link.slots = link.slots or int(rest)
            case "wheel" if isinstance(self._environment, Wheel):
                _log.info("installing an environment on %s", link.host)
                connection.send(self._environment.data)
            case "ready" if link.slots > 0:
                link.ready_at, link.problem = now, ""
                connection.passes_on = True
                _log.info("connected to %s, slots=%d", link.host, link.slots)
            case "units":
                self._note(link, json.loads(rest), now)
            case _:
                raise ValueError(verb)

    def _failed(self, link: _Link, problem: str, now: float) -> None:
        was_steady = link.ready_at is not None and now - link.ready_at >= STEADY_SECONDS
        link.failures = 0 if was_steady else link.failures + 1
        link.retry_at = now + RETRY.seconds(link.failures)
        link.connection, link.ready_at, link.problem = None, None, problem
        _log.warning("%s", problem)
        for unit_id in tuple(link.units):
            self._end(link.units, unit_id, UnitState.FAILED, problem, now)

    def _is_out(self, link: _Link, now: float) -> bool:
        return link.connection is None and link.retry_at > now

    def _problems(self) -> str:
        return "; ".join(link.problem for link in self._links if link.problem)

    def _place(self, now: float) -> None:
        while self._waiting:
            ready = [link for link in self._links if self._is_usable(link) and link.free]
            if not ready:
                break
            self._start_next(max(ready, key=lambda each: each.free), now)
        if not self._waiting:
            return
        for link in self._links:
            if link.connection is None and not self._is_out(link, now):
                self._connect(link, now)
        # Hosts that are not ready may soon have capacity, as may full hosts when a unit ends.
        starting = [link for link in self._links if link.connection is not None and not self._is_usable(link)]
        is_full = any(link.units for link in self._links)
        problems = self._problems()
        for unit_id, unit in tuple(self._waiting.items()):
            if starting:
                names = ", ".join(str(link.host) for link in starting)
                unit.state, unit.reason = UnitState.PENDING, problems or f"connecting to {names}"
            elif is_full:
                unit.state, unit.reason = UnitState.WAITING, problems or "all slots on the hosts are in use"
            else:
                self._end(self._waiting, unit_id, UnitState.FAILED, problems, now)

    def _start_next(self, link: _Link, now: float) -> None:
        unit_id = next(iter(self._waiting))
        unit = link.units[unit_id] = self._waiting.pop(unit_id)
        link.starts += 1
        unit.number, unit.state, unit.reason = link.starts, UnitState.PENDING, ""
        config = self._config.worker_config(unit_id, 1)
        if self._forwards:
            scheduler, storage = self._addresses(link)
            config = replace(config, scheduler_address=scheduler, object_storage_address=storage)
        self._send(link, {"start": config.to_json(), "unit_id": unit_id, "credential": self._credential}, now)

    def _is_usable(self, link: _Link) -> bool:
        is_ready = link.ready_at is not None and link.connection is not None
        return is_ready and len(link.ports) >= len(self._forwards)

    def _note(self, link: _Link, listed: dict[str, Any], now: float) -> None:
        """Record a host's list of units. Ended units appear in it only for a while. Raises errors for a malformed
        list."""
        seen = {str(unit_id): (UnitState(state), str(reason)) for unit_id, state, reason in listed["units"]}
        started = int(listed["started"])
        for unit_id, unit in tuple(link.units.items()):
            if unit_id in seen:
                unit.state, unit.reason = seen[unit_id]
            elif unit.number <= started:
                unit.state, unit.reason = UnitState.FAILED, "ended, but the host did not report why"
            if unit.state in ENDED:
                self._end(link.units, unit_id, unit.state, f"{link.host}: {unit.reason}", now)

    def _end(self, units: dict[str, _Unit], unit_id: str, state: UnitState, reason: str, now: float) -> None:
        unit = units.pop(unit_id)
        is_asked = unit.is_stopping or state is UnitState.STOPPED
        self._ended.add(Unit(unit_id, UnitState.STOPPED if is_asked else state, 1, now - unit.started_at, reason), now)

    def _send(self, link: _Link, message: dict[str, object], now: float) -> None:
        if link.connection is not None and self._is_usable(link):
            link.sent_at = now
            found = zip(self._keys, self._addresses(link), strict=False)
            keys = [{"addresses": [at], "server": each.server, "own": each.own} for each, at in found if each]
            link.connection.send(json.dumps({**message, "keys": keys}).encode() + b"\n")

    def _refresh(self, now: float) -> None:
        """Send heartbeats with the current keys, because a restarted scheduler has new keys."""
        due = [link for link in self._links if now - link.sent_at >= self._config.heartbeat_interval_seconds]
        if any(link.ready_at is not None for link in due):
            # Keep the previous keys of an unavailable server.
            self._keys = [new or old for new, old in zip(self._found_keys(), self._keys, strict=True)]
            for link in due:
                self._send(link, {}, now)

    def _addresses(self, link: _Link) -> Sequence[str]:
        return [f"tcp://127.0.0.1:{link.ports[target]}" for target in self._targets]

    def _found_keys(self) -> Sequence[FoundKeys | None]:
        if not (self._config.insecure_no_auth or self._credential):
            with suppress(UsageError):
                return [find(address) for address in self._forwards]
        return [None] * len(self._forwards)

    def _check(self) -> None:
        if not self._forwards or self._is_checked:
            return
        scheduler, storage = self._forwards
        self._keys = self._found_keys()
        if not (self._keys[0] or self._config.insecure_no_auth or self._credential):
            raise BackendError(
                f"the workers have no key for the scheduler at {scheduler}: set this manager's credentials to a file "
                "that `scaler keys add NAME --role manager` writes"
            )
        if is_loopback(storage) and not has_local_listener(storage):
            raise BackendError(
                f"no object storage of this user listens at {storage}, which workers would use through "
                "the tunnel: set object_storage_address to its address"
            )
        self._is_checked = True


def _wheel_for(config: SshConfig) -> Wheel:
    with tempfile.TemporaryDirectory() as directory:
        path = build_wheel(Path(directory))
        data = path.read_bytes()
    extras = "[uvloop]" if config.event_loop == "uvloop" else ""
    digest = hashlib.sha256(data + json.dumps([python_version(), extras]).encode()).hexdigest()
    return Wheel(path.name, data, digest[:32], extras)
