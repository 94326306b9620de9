"""Exceptions on their way to the client, and invalid payloads."""

from __future__ import annotations

import pickle
import threading
from typing import cast

import pytest

from scaler.errors import ProtocolError, RemoteError, RemoteTraceback
from scaler.serialization import parts_of, to_payload
from scaler.serialization.exceptions import dump_exception, load_exception, remote_traceback


class NeedsTwoError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.two = two


class OnWorkersOnlyError(Exception):
    pass


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def of_a_class_that_cannot_be_pickled(base: type[Exception]) -> Exception:
    return cast("Exception", type("LockedError", (base,), {"lock": threading.Lock()})("why"))


def test_exception_arrives_with_its_traceback_as_the_cause() -> None:
    loaded = load_exception(dump_exception(ValueError("why", 3), "Traceback: line 1"))
    assert type(loaded) is ValueError
    assert loaded.args == ("why", 3)
    assert isinstance(loaded.__cause__, RemoteTraceback)
    assert "line 1" in str(loaded.__cause__)


def raised(exception: BaseException, *, cause: BaseException | None = None) -> BaseException:
    try:
        if cause is not None:
            raise exception from cause
        raise exception
    except type(exception) as caught:
        return caught


def test_causes_contexts_and_notes_arrive_below_the_remote_traceback() -> None:
    first = raised(KeyError("first"))
    second = raised(NeedsTwoError(1, 2), cause=first)
    second.add_note("mind this")
    try:
        try:
            raise second
        except NeedsTwoError:
            raise ValueError("last")  # noqa: B904 (it has a context)
    except ValueError as caught:
        last = caught
    for exception in (second, last):
        loaded = load_exception(dump_exception(exception, "Traceback: line 1"))
        assert type(loaded) is type(exception)
    assert isinstance(loaded.__cause__, RemoteTraceback), "a context is no cause"
    loaded = loaded.__context__  # type: ignore[assignment]
    assert isinstance(loaded, NeedsTwoError)
    assert (loaded.__notes__, loaded.two) == (["mind this"], 2)
    assert isinstance(loaded.__cause__, KeyError)
    again = pickle.loads(pickle.dumps(load_exception(dump_exception(first, "text"))))
    assert (type(again), again.args) == (KeyError, ("first",))
    loaded = load_exception(dump_exception(second, "Traceback: line 1"))
    assert isinstance(loaded.__cause__, KeyError)
    assert isinstance(loaded.__cause__.__cause__, RemoteTraceback)
    assert remote_traceback(loaded) is loaded.__cause__.__cause__


def test_unloadable_exception_arrives_by_name_and_text(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = dump_exception(OnWorkersOnlyError("why"), "text")
    monkeypatch.delattr(f"{__name__}.OnWorkersOnlyError")
    loaded = load_exception(payload)
    assert isinstance(loaded, RemoteError)
    assert "OnWorkersOnlyError: why (the exception itself cannot be loaded here: AttributeError" in str(loaded)


@pytest.mark.parametrize("exception", [of_a_class_that_cannot_be_pickled(base) for base in (ValueError, SilentError)])
def test_unpicklable_exception_arrives_by_name_with_the_reason(exception: BaseException) -> None:
    loaded = load_exception(dump_exception(exception, "text"))
    assert isinstance(loaded, RemoteError)
    assert "cannot be pickled" in str(loaded)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x09abc",
        b"\x01",
        b"\x01\xff\xff\xff\xff",
        to_payload([b"a", b"bc"])[:-16],
        b"\x01" + b"\x01\0\0\0" + b"\xff" * 8,
    ],
)
def test_invalid_payload_raises_only_its_documented_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        parts_of(payload)
