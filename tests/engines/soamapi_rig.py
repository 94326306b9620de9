"""The stand-in for soamapi in this process, with a service that does what its input says."""

from __future__ import annotations

import importlib
import sys
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scaler.testing.soamapi import StandIn, api
from scaler.testing.soamapi.messages import InputStream, OutputStream, SoamException

DEADLINE_SECONDS = 30.0
SERVICE = """
import os, sys, time
from array import array
from pathlib import Path
import soamapi

class Text(soamapi.Message):
    def __init__(self, text=""):
        self.text = text
    def on_serialize(self, stream):
        data = array("b", self.text.encode())
        stream.write_byte_array(data, 0, len(data))
    def on_deserialize(self, stream):
        self.text = stream.read_byte_array("b").tobytes().decode()

class Service(soamapi.ServiceContainer):
    def on_invoke(self, context):
        text = Text()
        context.populate_task_input(text)
        verb, _, rest = text.text.partition(" ")
        if verb == "die":
            os._exit(3)
        if verb == "note":
            path, _, word = rest.partition(" ")
            with open(path, "a") as file:
                file.write(f"{word}\\n")
        if verb == "throw":
            raise KeyError(rest)
        if verb == "fail" and not Path(rest).exists():
            Path(rest).touch()
            raise soamapi.FailureException("not yet")
        if verb == "hang":
            with open(rest, "a") as file:
                file.write(f"{os.getpid()}\\n")
            while not Path(rest + ".go").exists():
                time.sleep(0.005)  # the service of the engine has no tests/waiting.py
        context.set_task_output(Text(f"did {text.text}"))

Service().run()
"""


class Text(api.Message):
    def __init__(self, text: str = "") -> None:
        self.text = text

    def on_serialize(self, stream: OutputStream) -> None:
        data = array("b", self.text.encode())
        stream.write_byte_array(data, 0, len(data))

    def on_deserialize(self, stream: InputStream) -> None:
        self.text = stream.read_byte_array("b").tobytes().decode()


class Inbox(api.SessionCallback):
    """Keeps the responses of a session: outputs and errors by task, in the order of their callbacks."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.told: list[tuple[str, str]] = []

    def on_response(self, handle: api.TaskOutputHandle) -> None:
        if handle.is_successful():
            message = Text()
            try:
                handle.populate_task_output(message)
                text = message.text
            except SoamException as error:
                text = f"unreadable: {error}"
        else:
            embedded = handle.get_exception().get_embedded_exception()
            text = f"{handle.get_exception()}" + (f" [{embedded!r}]" if embedded else "")
        with self._changed:
            self.told.append((handle.get_id(), text))
            self._changed.notify_all()

    def until(self, condition: Callable[[], Any]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE_SECONDS), self.told

    def texts(self, count: int) -> list[str]:
        """Wait for `count` responses; return their texts."""
        self.until(lambda: len(self.told) >= count)
        return [text for _, text in self.told]


def use(settings: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `import soamapi` find a stand-in like this, here and in the processes that are started from here."""
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "soamapi", importlib.import_module("scaler.testing.soamapi.on_path.soamapi"))
    api.reset(settings)


def script_service(directory: Path) -> tuple[str, ...]:
    """Return the command of a service that does what its input says."""
    script = directory / "service.py"
    script.write_text(SERVICE)
    return (sys.executable, str(script))


def connected(user: str = "Guest", password: str = "", application: str = "app") -> api.Connection:
    api.initialize()
    return api.connect(application, api.DefaultSecurityCallback(user, password))


def session_of(connection: api.Connection, inbox: Inbox, priority: int = 1) -> api.KillingSession:
    attributes = api.SessionCreationAttributes()
    attributes.set_session_name("test")
    attributes.set_session_type("RecoverableAllHistoricalData")
    attributes.set_session_flags(api.SessionFlags.PARTIAL_ASYNC)
    attributes.set_session_callback(inbox)
    attributes.set_session_priority(priority)
    session = connection.create_session(attributes)
    assert isinstance(session, api.KillingSession)
    return session


def send(session: api.ClientSession, text: str) -> str:
    attributes = api.TaskSubmissionAttributes()
    attributes.set_task_input(Text(text))
    return session.send_task_input(attributes).get_id()
