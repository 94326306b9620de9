"""Exceptions, including nested ones, arrive unchanged for any signature of `__init__`."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

import pytest

from scaler.errors import RemoteError, RemoteTraceback
from scaler.serialization.exception_graph import copy_of
from scaler.serialization.exceptions import dump_exception, load_exception

inits: list[type] = []


class MissingError(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is missing")
        inits.append(type(self))


class KeywordError(Exception):
    def __init__(self, *, code: int, why: str = "none") -> None:
        super().__init__(why)
        self.code = code


class WithoutSuperError(Exception):
    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.text = text

    def __str__(self) -> str:
        return f"{self.number}: {self.text}"


class PathError(OSError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "No such thing", path)
        self.path = path


class NewAndInitError(OSError):
    def __new__(cls, path: str, **_: object) -> NewAndInitError:
        return super().__new__(cls, 13, "Not yours", path)

    def __init__(self, path: str, *, again: bool) -> None:
        self.again = again


@dataclass(frozen=True)
class FrozenError(Exception):
    number: int
    text: str


@dataclass
class UnhashableError(Exception):
    number: int


class SlotsError(Exception):
    __slots__ = ("__private", "number", "unset")

    def __init__(self, number: int) -> None:
        self.number = number
        self.__private = -number

    def __str__(self) -> str:
        return f"{self.number} {self.__private}"


class GuardedError(Exception):
    """Refuses attributes, and computes one whose value is in its `__dict__`."""

    def __init__(self, text: str, size: int) -> None:
        super().__init__(text)
        self.__dict__["size"] = size

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)

    @property
    def size(self) -> str:
        return f"{self.__dict__['size']} bytes"


class OwnReduceError(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(f"number {number}")
        self.number = number
        self.ways = "init"

    def __reduce__(self) -> Any:
        return self.rebuild, (self.number,)

    @classmethod
    def rebuild(cls, number: int) -> OwnReduceError:
        made = cls(number)
        made.ways = "reduce"
        return made


class BrokenReduceError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(one + two)

    def __reduce__(self) -> Any:
        return type(self), (1,)


class Failures(ExceptionGroup[Exception]):
    def __new__(cls, errors: list[Exception]) -> Failures:
        return super().__new__(cls, f"{len(errors)} failed", errors)

    def __init__(self, errors: list[Exception]) -> None:
        self.first = errors[0]


def with_changes() -> BaseException:
    error = ValueError("before")
    error.args = ("after", 2)
    error.add_note("mind this")
    return error


def with_fields() -> BaseException:
    error = ImportError("none", name="module", path="/there")
    error.msg = "changed"
    return error


def local() -> BaseException:
    class LocalError(MissingError):
        pass

    return LocalError("x")


def caught(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:  # noqa: BLE001 (also SystemExit)
        error.__traceback__ = None
        return error
    raise AssertionError(call)


SHAPES: dict[str, Callable[[], BaseException]] = {
    "formats": lambda: MissingError("x"),
    "keywords": lambda: KeywordError(code=3),
    "without super": lambda: WithoutSuperError(1, "two"),
    "OSError": lambda: OSError(2, "No such file", "/one", None, "/two"),
    "__new__ and __init__": lambda: NewAndInitError("/one", again=True),
    "CalledProcessError": lambda: subprocess.CalledProcessError(3, ["a"], b"out", b"err"),
    "frozen dataclass": lambda: FrozenError(1, "two"),
    "unhashable": lambda: UnhashableError(1),
    "slots": lambda: SlotsError(4),
    "UnicodeDecodeError": lambda: caught(b"\xff".decode),
    "ImportError": with_fields,
    "refuses attributes": lambda: GuardedError("why", 7),
    "own __reduce__": lambda: OwnReduceError.rebuild(3),
    "broken __reduce__": lambda: BrokenReduceError(1, 2),
    "changed args": with_changes,
    "group": lambda: ExceptionGroup("some", [MissingError("x"), ExceptionGroup("in", [PathError("/a")])]),
    "subclass of groups": lambda: Failures([MissingError("x"), KeywordError(code=1)]),
    "exceptions inside": lambda: WithoutSuperError(1, {"all": [MissingError("x")]}),  # type: ignore[arg-type]
    "class of a function": local,
}


def facts(error: object, deep: int = 4) -> Any:
    """Return everything visible of an exception and of all exceptions in it."""
    if isinstance(error, dict):
        return {name: facts(each, deep) for name, each in error.items()}
    if isinstance(error, list | tuple):
        return type(error), [facts(each, deep) for each in error]
    if not isinstance(error, BaseException):
        return error
    if not deep or isinstance(error, RemoteTraceback):
        return type(error)
    fields = {
        name: facts(getattr(error, name, "unset"), deep - 1)
        for base in type(error).__mro__
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType | GetSetDescriptorType) and not name.startswith("__")
    }
    cause = None if isinstance(error.__cause__, RemoteTraceback) else error.__cause__
    return (
        type(error),
        str(error),
        facts(error.args, deep - 1),
        facts(error.__dict__, deep - 1),
        fields,
        facts(cause, deep - 1),
        facts(error.__context__, deep - 1),
    )


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("arrives", [lambda error: load_exception(dump_exception(error, "text")), copy_of])
def test_exception_round_trips(name: str, arrives: Callable[[BaseException], BaseException]) -> None:
    error = SHAPES[name]()
    seen = facts(error)
    inits.clear()
    arrived = arrives(error)
    assert arrived is not error or name == "broken __reduce__", "a copy"
    assert facts(arrived) == seen
    assert facts(error) == seen
    assert not inits, "`__init__` ran again"


def test_causes_of_group_members_and_of_causes_arrive() -> None:
    def fail() -> None:
        try:
            try:
                raise PathError("/one")
            except PathError as first:
                raise MissingError("second") from first
        except MissingError as second:
            second.add_note("mind this")
            try:
                raise KeyError("while")
            except KeyError as third:
                raise ExceptionGroup("all", [second, third]) from second

    error = caught(fail)
    assert isinstance(error, ExceptionGroup)
    arrived = load_exception(dump_exception(error, "text"))
    assert isinstance(arrived, ExceptionGroup)
    second: Any = arrived.exceptions[0]
    third: Any = arrived.exceptions[1]
    assert (arrived.__cause__, arrived.__context__) == (second, third)
    assert (second.__notes__, second.__cause__.errno) == (["mind this"], 2)
    assert (third.__context__, third.__suppress_context__) == (second, False)


def test_self_referencing_exception_arrives() -> None:
    error = ValueError("why")
    error.args = ("why", error)
    other = KeyError("other")
    other.__context__ = error
    error.__context__ = other
    arrived = load_exception(dump_exception(error, "text"))
    assert arrived.args == ("why", arrived)
    assert arrived.__context__ is not None
    assert arrived.__context__.__context__ is arrived


def test_unpicklable_attributes_are_omitted_and_the_exception_arrives() -> None:
    error = KeywordError(code=1)
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    error.args = ("why", error.lock)  # type: ignore[attr-defined]
    error.add_note("first")
    arrived = load_exception(dump_exception(error, "text"))
    assert isinstance(arrived, KeywordError)
    assert (arrived.code, arrived.args) == (1, ("why", repr(error.lock)))  # type: ignore[attr-defined]
    assert not hasattr(arrived, "lock")
    why = "because it is not picklable: TypeError: cannot pickle '_thread.lock' object"
    assert arrived.__notes__ == ["first", f"args[1] was replaced by its repr, {why}", f"lock was left out, {why}"]


def refuse() -> None:
    raise ModuleNotFoundError("no such module")


class MissingHere:
    def __reduce__(self) -> Any:
        return refuse, ()


def test_unloadable_member_arrives_by_name_and_text(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ExceptionGroup("some", [MissingError("x"), WithoutSuperError(1, MissingHere()), PathError("/a")])  # type: ignore[arg-type]
    payload = dump_exception(error, "text")
    monkeypatch.delattr(f"{__name__}.MissingError")
    first, second, third = load_exception(payload).exceptions  # type: ignore[attr-defined]
    assert isinstance(first, RemoteError)
    assert "MissingError: x is missing (the exception itself cannot be loaded here: AttributeError" in str(first)
    assert isinstance(second, WithoutSuperError)
    assert "its attributes cannot be loaded here: ModuleNotFoundError" in second.__notes__[0]
    assert third.errno == 2
