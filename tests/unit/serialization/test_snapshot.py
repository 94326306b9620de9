"""Snapshots: a change of anything that a function takes along in its pickle is noticed, and nothing else is."""

from __future__ import annotations

import abc
import collections
import functools
import sys
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from scaler.serialization.snapshot import Fresh, FunctionSnapshot, snapshot_of

NAMES = """
import abc, collections, dataclasses, enum, functools, logging, re, xml

limit = 1
pattern = re.compile("x")
log = logging.getLogger(__name__)
weights = [0.5, 0.5]
table = {"a": [1]}

class Base:
    rate = 1
class Config(Base):
    levels = [1, 2]
    @property
    def double(self): return 2 * self.rate
    @staticmethod
    def helper(): return limit
@dataclasses.dataclass
class Point:
    x: int = 0
class Color(enum.Enum):
    RED = 1
    def shade(self): return limit
class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

def inner(): return limit
def decorate(function):
    @functools.wraps(function)
    def wrapper(*args): return function(*args)
    return wrapper
@functools.cache
def cached(): return limit
halve = functools.partial(inner, step=2)

def f(x: Config = None, *, scale=2):
    inner, Config, Point, Color, Shape, cached, decorate, halve, pattern, log, weights, table, xml, later
    return len(collections)
f.calls = 0
"""


@pytest.fixture
def names() -> dict[str, Any]:
    made = ModuleType("made")
    exec(compile(NAMES, "made", "exec", dont_inherit=True), made.__dict__)
    return made.__dict__


def snapshot(function: Any) -> FunctionSnapshot:
    made = snapshot_of(function)
    assert made is not None, "there is something that could change unnoticed"
    assert not made.has_changed()
    return made


@pytest.mark.parametrize(
    "change",
    [
        "limit = 2",
        "later = 1",
        "del limit",
        "len = 3",
        "weights.append(1)",
        "weights[0] = 0.7",
        "table['a'].append(2)",
        "table['a'] = [1]",
        "table['b'] = 1",
        "def inner(): return 7",
        "inner.__code__ = (lambda: 7).__code__",
        "inner.__defaults__ = (1,)",
        "inner.__dict__['note'] = 1",
        "f.calls = 1",
        "f.__kwdefaults__['scale'] = 3",
        "f.__annotations__['x'] = int",
        "f.__doc__ = 'text'",
        "f.__name__ = 'g'",
        "Config.rate = 5",
        "Base.rate = 5",
        "del Base.rate",
        "Config.levels.append(3)",
        "Config.more = 1",
        "Config.double = property(lambda self: 3)",
        "Config.__bases__ = (type('Other', (), {}),)",
        "Config.helper = staticmethod(inner)",
        "Point.x = 5",
        "Point.__init__ = inner",
        "Color.shade = inner",
        "Shape.register(int)",
        "halve.keywords['step'] = 3",
        "cached.note = 1",
        "cached = functools.cache(inner)",
        "pattern = re.compile('y')",
    ],
)
def test_notices(names: dict[str, Any], change: str) -> None:
    made = snapshot(names["f"])
    exec(change, names)
    assert made.has_changed()


@pytest.mark.parametrize("change", ["unrelated = 1", "cached()", "Shape.__subclasses__()", "log.setLevel(10)"])
def test_does_not_notice_what_leaves_the_pickle_alone(names: dict[str, Any], change: str) -> None:
    made = snapshot(names["f"])
    exec(change, names)
    assert not made.has_changed()


def test_notices_an_import_of_a_submodule(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made = snapshot(names["f"])
    monkeypatch.setitem(sys.modules, "xml.made_for_this_test", ModuleType("xml.made_for_this_test"))
    assert made.has_changed()


@pytest.mark.parametrize(
    "value",
    [
        "Base()",
        "{1, 2}",
        "collections.deque()",
        "bytearray(2)",
        "type('Number', (int,), {})(3)",
        "Base().__init__",
        "f.__get__",
    ],
)
def test_there_is_none_of_what_could_change_unnoticed(names: dict[str, Any], value: str) -> None:
    names["later"] = eval(value, names)
    assert snapshot_of(names["f"]) is None


def test_functions_of_importable_modules_never_change() -> None:
    for function in (abc.get_cache_token, functools.reduce, collections.OrderedDict, len, int.__add__, str.join):
        made = snapshot(function)
        assert not made.classes


def test_functions_of_modules_that_travel_by_value_do(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("made_for_this_test")
    exec("limit = 1\ndef f(): return limit\n", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    cloudpickle.register_pickle_by_value(module)
    try:
        made = snapshot(module.f)
        module.limit = 2  # type: ignore[attr-defined]
        assert made.has_changed()
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def loaded(text: str, pickled: bytes | None = None) -> Fresh[Any]:
    names: dict[str, Any] = {"__name__": "made"}
    exec(text, names)
    pickled = cloudpickle.dumps(names["f"])
    return Fresh(lambda: cloudpickle.loads(pickled))


def test_an_unpickled_function_is_used_again_while_nothing_has_changed() -> None:
    fresh = loaded("limit = 1\ndef f(): return limit\n")
    assert fresh.get() is fresh.get()


@pytest.mark.parametrize(
    "text",
    [
        "n = 0\ndef f():\n global n\n n += 1\n return n",
        "def f():\n globals()['n'] = globals().get('n', 0) + 1\n return n",
        "def f():\n f.n = getattr(f, 'n', 0) + 1\n return f.n",
        "def f(seen=[]):\n seen.append(1)\n return len(seen)",
        "def f(*, seen={}):\n seen[len(seen)] = 1\n return len(seen)",
        "def make():\n n = 0\n def f():\n  nonlocal n\n  n += 1\n  return n\n return f\nf = make()",
        "class C:\n n = 0\n def m(self):\n  self.n += 1\n  return self.n\nf = C().m",
        "class C:\n n = 0\n def __call__(self):\n  C.n += 1\n  return C.n\nf = C()",
        "import functools\ndef g(seen):\n seen.append(1)\n return len(seen)\nf = functools.partial(g, [])",
        "seen = set()\ndef f():\n seen.add(len(seen))\n return len(seen)",
    ],
)
def test_what_a_call_changes_in_its_function_ends_with_the_call(text: str) -> None:
    fresh = loaded(text)
    assert [fresh.get()() for _ in range(3)] == [1, 1, 1]
