"""An empty account emulated by moto, and the commands that set up a worker manager in it."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from moto.server import ThreadedMotoServer

from scaler.config.commands import Provision, parse_worker_manager
from scaler.worker_manager.aws.calls import AwsClient


@contextmanager
def moto_server() -> Iterator[str]:
    """Yield the address of a moto server."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


class Cloud:
    """An account, with the commands of one worker manager type. flags: common to all commands."""

    def __init__(
        self, endpoint_url: str, manager: str, provision: Callable[..., int], flags: Mapping[str, str]
    ) -> None:
        self.endpoint_url = endpoint_url
        self._manager = manager
        self._provision = provision
        self._flags = flags
        self._clients: dict[str, AwsClient] = {}

    def told(self, verb: str, *flags: str) -> Provision:
        given = [word for name, value in self._flags.items() if name not in flags for word in (name, value)]
        arguments = [self._manager, verb, "--aws-endpoint-url", self.endpoint_url, *given, *flags]
        found = parse_worker_manager("scaler_worker_manager", arguments, {})
        assert isinstance(found, Provision)
        return found

    def config(self, *flags: str) -> Any:
        return self.told("show", *flags).config

    def do(self, verb: str, *flags: str, code: int = 0) -> list[tuple[str, str]]:
        """Run the command, and return each line about a resource as a pair of verb and subject."""
        lines: list[str] = []
        told = self.told(verb, *flags)
        assert self._provision(told.config, told.verb, told.dry_run, lines.append) == code
        return [(line[:13].strip(), line[13:].strip()) for line in lines if not line.startswith("runs ")]

    def client(self, service: str) -> AwsClient:
        if service not in self._clients:
            self._clients[service] = AwsClient(self.config(), service)
        return self._clients[service]

    def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        return self.client(service).call(operation, **parameters)

    def reset(self) -> None:
        """Empty the account."""
        request = urllib.request.Request(f"{self.endpoint_url}/moto-api/reset", method="POST")
        urllib.request.urlopen(request).close()

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def words(lines: list[tuple[str, str]]) -> list[str]:
    return [word for word, _ in lines]
