"""Snapshots detect every change to the objects pickled with a function, and no other change."""

from __future__ import annotations

import logging
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


CHANGED = (
    "limit = 2", "later = 1", "del limit", "len = 3", "weights.append(1)", "weights[0] = 0.7", "table['a'].append(2)",
    "table['a'] = [1]", "table['b'] = 1", "def inner(): return 7", "inner.__code__ = (lambda: 7).__code__",
    "inner.__defaults__ = (1,)", "inner.__dict__['note'] = 1", "f.calls = 1", "f.__kwdefaults__['scale'] = 3",
    "f.__annotations__['x'] = int", "f.__doc__ = 'text'", "f.__name__ = 'g'", "Config.rate = 5", "Base.rate = 5",
    "del Base.rate", "Config.levels.append(3)", "Config.more = 1", "Config.double = property(lambda self: 3)",
    "Config.__bases__ = (type('Other', (), {}),)", "Config.helper = staticmethod(inner)", "Point.x = 5",
    "Point.__init__ = inner", "Color.shade = inner", "Shape.register(int)", "halve.keywords['step'] = 3",
    "cached.note = 1", "cached = functools.cache(inner)", "pattern = re.compile('y')",
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGED)
def test_snapshot_detects_changes_that_affect_the_pickle(names: dict[str, Any], change: str) -> None:
    made = snapshot(names["f"])
    exec(change, names)
    assert made.has_changed()


@pytest.mark.parametrize("change", ["unrelated = 1", "cached()", "Shape.__subclasses__()", "log.setLevel(10)"])
def test_ignores_changes_that_do_not_affect_the_pickle(names: dict[str, Any], change: str) -> None:
    made = snapshot(names["f"])
    exec(change, names)
    assert not made.has_changed()


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
def test_functions_with_undetectable_changes_have_no_snapshot(names: dict[str, Any], value: str) -> None:
    names["later"] = eval(value, names)
    assert snapshot_of(names["f"]) is None


def test_logger_is_pickled_by_name_unless_its_class_overrides_it(names: dict[str, Any]) -> None:
    names["later"] = type("Plain", (logging.Logger,), {})("x")
    snapshot(names["f"])
    names["later"] = type("Counting", (logging.Logger,), {"__reduce__": lambda self: (str, (self.name,))})("x")
    assert snapshot_of(names["f"]) is None


def test_functions_of_modules_pickled_by_value_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_changes_of_a_call_to_its_function_end_with_the_call(text: str) -> None:
    fresh = loaded(text)
    assert [fresh.get()() for _ in range(3)] == [1, 1, 1]


READS = (
    "table[x]", "table[x + 1]", "table[str(x)]", "table[x, x]", "table[table[x]]", "table[x.real.imag % 2]",
    "x in table", "1 if table else 2", "not table", "len(table)", "max(table)", "table.get(x, 5)",
    "table.get(table[x])", "[each for each in table]", "[each for each in table.values()]", "(lambda: table[x])()",
)  # fmt: skip
CHANGES = (
    "table.pop(x)", "table.append(x)", "change(table)", "len(x, table)", "change(x)(table)", "change(len(x), table)",
    "table", "[table]", "(x or table)", "table if x else x", "table.get", "iter(table)", "x[table]", "table + x",
    "table[x].append(1) or table", "(lambda: table)()", "(lambda: table.clear())()", "globals()['table'].clear()",
)  # fmt: skip


@pytest.mark.parametrize("table", [[1, "x", (1, 2)], {1: 2.0, (1, "x"): None}, [], {}])
def test_does_not_compare_a_container_that_a_function_only_reads(table: Any) -> None:
    for text, is_fixed in [*((each, True) for each in READS), *((each, False) for each in CHANGES)]:
        snapshot = snapshot_of(eval(f"lambda x: {text}", {"table": table}), is_loaded=True)
        assert snapshot is not None
        assert (text, snapshot.is_fixed) == (text, is_fixed)


@pytest.mark.parametrize(
    "program",
    [
        "def f(x): table[x] = 1",
        "def f(x): del table[x]",
        "def f(x):\n    for table[x] in x: pass",
        "def f(x): (table if x else x)[0] += 1",
        "def f(x): table[x] += 1",
        "def f(x): return table[x], g()\ndef g(): table.append(1)",
        "def f(x): return table[x], g()\ndef g(): globals()['table'].clear()",
        "def f(x, other=table): return table[x]",
        "add = table.append\ndef f(x): return table[x], add(x)",
        "def len(each): each.clear()\ndef f(x): return len(table)",
        "table[0] = [1]\ndef f(x): return table[x]",
        "table[0] = 1, [1]\ndef f(x): return table[x]",
    ],
)
def test_compares_a_container_that_a_function_may_change(program: str) -> None:
    names: dict[str, Any] = {"table": [1, 2]}
    exec(program, names)
    snapshot = snapshot_of(names["f"], is_loaded=True)
    assert snapshot is not None
    assert not snapshot.is_fixed
    names["table"].append(1)
    assert snapshot.has_changed()
