"""Texts of failures can be read without loading user-defined classes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scaler.errors import ProtocolError
from scaler.protocol.failures import FailureTexts, failure_texts, pack_exception, unpack_exception
from scaler.protocol.messages import Outcome
from scaler.serialization.exceptions import dump_exception
from scaler.texts import escaped_lines


class ExplosiveError(Exception):
    def __reduce__(self) -> tuple[object, ...]:
        return _explode, ()


def _explode() -> None:
    raise AssertionError("it was loaded")


@given(st.text(), st.text(), st.text(), st.binary(max_size=50))
def test_texts_arrive_as_displayed_and_the_pickle_unchanged(
    kind: str, text: str, traceback: str, pickled: bytes
) -> None:
    readable = [escaped_lines(each.encode("utf-8", "backslashreplace").decode()) for each in (kind, text, traceback)]
    assert unpack_exception(pack_exception(kind, text, traceback, pickled)) == (*readable, pickled)


@given(st.binary(max_size=80))
def test_any_bytes_are_an_exception_or_refused(payload: bytes) -> None:
    for data in (payload, b"\x04\x01" + payload):
        try:
            unpack_exception(data)
        except ProtocolError:
            assert failure_texts(Outcome.EXCEPTION, data).text.startswith("the exception cannot be read")


def test_task_exception_shows_type_text_and_traceback_without_loading() -> None:
    payload = dump_exception(ExplosiveError("why"), "Traceback: line 1")
    found = failure_texts(Outcome.EXCEPTION, payload)
    assert found.text.endswith("test_failure_texts.ExplosiveError: why")
    assert found.traceback == "Traceback: line 1"
    assert failure_texts(Outcome.EXCEPTION, dump_exception(KeyError(), "")) == FailureTexts("KeyError", "")
