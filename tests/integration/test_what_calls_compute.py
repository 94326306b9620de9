"""A call computes the same as in a fresh process, from its function and arguments as of the call.

The programs here run in a module that travels by value, as `__main__` does. Each result is compared with the same call
in a child of a process that `concurrent.futures` spawned.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler import Client, SchedulerClusterCombo
from scaler.serialization import Serializer
from tests.short_forms import short_form

PROGRAM = """
import functools, os

limit = 1
items = [1]
table = {"a": [1]}

class Config:
    rate = 1
    levels = [1]
    def total(self):
        return limit + Config.rate

class Trade:
    count = 0
    def __init__(self, price):
        self.price = price
        self.seen = []
    def touch(self):
        self.price += 1
        self.seen.append(limit)
        type(self).count += 1
        return self.price, self.seen, type(self).count
    def __eq__(self, other):
        return (self.price, self.seen) == (other.price, other.seen)

class Counter:
    def __init__(self):
        self.count = 0
    def add(self, x):
        self.count += 1
        return self.count, x
    def __call__(self, x):
        return self.add(x)

def helper(x):
    return limit

def seen(x):
    "Returns what a call can see, after it has changed all of it."
    global limit
    found = [
        limit, list(items), {key: list(each) for key, each in table.items()}, Config.rate, list(Config.levels),
        helper(x), getattr(seen, "calls", 0), getattr(helper, "calls", 0), Config().total(), Trade.count,
        "later" in globals() and later,
    ]
    limit += 1
    items.append(x)
    table["a"].append(x)
    table[repr(x)] = []
    Config.rate += 1
    Config.levels.append(x)
    Config.other = x
    Trade.count += 1
    seen.calls = getattr(seen, "calls", 0) + 1
    helper.calls = getattr(helper, "calls", 0) + 1
    return found

def lookup(x):
    return items[0], len(items), [each for each in items], x in items, table["a"], limit

def default(x, kept=[]):
    kept.append(x)
    return list(kept)

def make_closure():
    count = 0
    kept = []
    def closure(x):
        nonlocal count
        count += 1
        kept.append(x)
        return count, list(kept)
    return closure

def grows(x):
    x.append(len(x))
    return x

def same(x):
    return x

def trades(x):
    return Trade(limit).touch()

def shared(x):
    return items

def plain(x):
    return x

def touch(trade):
    return trade.touch()

def first(pair):
    return grows(pair[0]), pair[1]

closure = make_closure()
counter = Counter()
bound = counter.add
part = functools.partial(lambda kept, x: (grows(kept), x), [])
"""

CHANGES = (
    "limit += 1",
    "items.append(limit)",
    "items = [limit]",
    "table['a'].append(7)",
    "Config.rate += 1",
    "Config.levels.append(2)",
    "Config.total = lambda self: -limit",
    "Config.more = limit",
    "Trade.count += 10",
    "later = limit",
    "globals().pop('later', None)",
    "def helper(x): return -limit",
    "helper.calls = 5",
    "default.__defaults__ = ([limit],)",
    "counter.count += 10",
    "closure(1)",
    "seen.calls = 3",
)


EXAMPLES = int(os.environ.get("CALLS_EXAMPLES", "5"))
"""Of the property; an hour of it has about 3,000."""


class Pickled(Serializer):
    """A user's serializer."""

    def serialize(self, obj: Any) -> bytes:
        return bytes(cloudpickle.dumps(obj))

    def deserialize(self, payload: bytes) -> Any:
        return pickle.loads(payload)


def run_fresh(pickled: bytes) -> bytes:
    """Return the pickle of a call's result, computed in a child of this process without knowledge of other calls."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            function, args = cloudpickle.loads(pickled)
            data = cloudpickle.dumps(function(*args))
            while data:
                data = data[os.write(write, data) :]
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        returned = file.read()
    os.waitpid(child, 0)
    return returned


@pytest.fixture(scope="module")
def fresh() -> Iterator[Callable[[Any, Any], Any]]:
    """Calls a function with one argument in a fresh process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:

        def call(function: Any, argument: Any) -> Any:
            return pickle.loads(pool.submit(run_fresh, cloudpickle.dumps((function, (argument,)))).result())

        yield call


@pytest.fixture(scope="module")
def client(cluster: SchedulerClusterCombo) -> Iterator[Client]:
    with Client(cluster.get_address()) as client:
        yield client


def program() -> dict[str, Any]:
    """Run a program; return its globals."""
    made = ModuleType("__main__")
    exec(compile(PROGRAM, "program.py", "exec", dont_inherit=True), made.__dict__)
    made.__dict__["lambda"] = eval("lambda x: (limit, items, x)", made.__dict__)
    return made.__dict__


def state(names: dict[str, Any]) -> str:
    """Return a text of everything that reading a result could change in the program."""
    classes = {
        name: {key: repr(each) for key, each in vars(names[name]).items()} for name in ("Config", "Trade", "Counter")
    }
    functions = {name: vars(names[name]).copy() for name in ("seen", "helper", "default")}
    return repr((classes, functions, *(names[name] for name in ("limit", "items", "table"))))


def submit_all(client: Client, function: Any, items: list[Any]) -> list[Any]:
    return [future.result() for future in [client.submit(function, item) for item in items]]


def map_in_chunks(client: Client, function: Any, items: list[Any]) -> list[Any]:
    return list(client.map(function, items, chunk_size=4))


def map_by_measurement(client: Client, function: Any, items: list[Any]) -> list[Any]:
    return list(client.map(function, items))


def imap_in_chunks(client: Client, function: Any, items: list[Any]) -> list[Any]:
    return list(client.imap(function, items, chunk_size=3))


def starmap_in_chunks(client: Client, function: Any, items: list[Any]) -> list[Any]:
    return list(client.starmap(function, [(item,) for item in items], chunk_size=4))


def graph_in_chunks(client: Client, function: Any, items: list[Any]) -> list[Any]:
    graph: dict[str, Any] = {f"item {index}": item for index, item in enumerate(items)}
    graph |= {f"node {index}": (function, f"item {index}") for index in range(len(items))}
    graph |= {f"wanted {index}": (list, f"node {index}") for index in range(len(items))}
    wanted = [f"wanted {index}" for index in range(len(items))]
    found = client.get(graph, wanted, chunk_size=3)
    return [found[key] for key in wanted]


WAYS = (submit_all, map_in_chunks, map_by_measurement, imap_in_chunks, starmap_in_chunks, graph_in_chunks)
FUNCTIONS = ("seen", "lookup", "default", "closure", "counter", "bound", "lambda")
CALLS = (
    *itertools.product(FUNCTIONS, ("[1, 2, 3, 4, 5]",)),
    *itertools.product(("grows", "shared", "same", "part"), ("[items] * 5", "[[each] for each in range(5)]")),
    ("first", "[(items, each) for each in range(5)]"),
    ("touch", "[Trade(each) for each in range(5)]"),
    ("touch", "[Trade(1)] * 5"),
    ("trades", "range(5)"),
)
"""A function and the items that it is called with."""


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    steps=st.lists(
        st.one_of(st.sampled_from(CHANGES), st.tuples(st.sampled_from(CALLS), st.sampled_from(WAYS))), max_size=12
    )
)
def test_calls_compute_what_a_fresh_process_would(
    client: Client, fresh: Callable[[Any, Any], Any], steps: list[Any]
) -> None:
    names = program()
    for step in steps:
        if isinstance(step, str):
            exec(step, names)
            continue
        (name, text), way = step
        items = list(eval(text, names))
        expected = [fresh(names[name], item) for item in items]
        before = state(names)
        assert [list(each) for each in way(client, names[name], items)] == [list(each) for each in expected]
        assert state(names) == before


@pytest.mark.parametrize("way", short_form([*WAYS], 2))
def test_each_way_to_call_computes_the_same(
    client: Client, fresh: Callable[[Any, Any], Any], way: Callable[..., list[Any]]
) -> None:
    """Every call by some method, and the two that change most by each method."""
    number = WAYS.index(way)
    for function, text in dict.fromkeys([CALLS[0], ("grows", "[items] * 5"), *CALLS[number :: len(WAYS)]]):
        names = program()
        items = list(eval(text, names))
        expected = [list(fresh(names[function], item)) for item in items]
        before = state(names)
        for _ in range(2):
            assert [list(each) for each in way(client, names[function], items)] == expected, (function, text)
        assert state(names) == before, (function, text)


def test_calls_in_this_process_share_only_classes(fresh: Callable[[Any, Any], Any]) -> None:
    with Client(processes=False) as client:
        for function, text in CALLS:
            if function in {"seen", "touch", "trades"}:
                continue
            names = program()
            items = list(eval(text, names))
            expected = [list(fresh(names[function], item)) for item in items]
            before = state(names)
            found = [list(client.submit(names[function], item).result()) for item in items]
            assert found == expected, (function, text)
            assert state(names) == before, (function, text)


def test_calls_in_threads_of_this_process_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting: Any = ModuleType("meeting")
    meeting.wait = threading.Barrier(2, timeout=10).wait
    monkeypatch.setitem(sys.modules, "meeting", meeting)
    names = program()
    exec(
        """
def meet(x):
    import meeting
    meeting.wait()
    items.append(x)
    meeting.wait()
    return items
""",
        names,
    )
    with Client(processes=False) as client, ThreadPoolExecutor(2) as threads:
        for _ in range(2):
            calls = [threads.submit(lambda: client.submit(names["meet"], 2).result()) for _ in range(2)]
            assert [call.result() for call in calls] == [[1, 2]] * 2


@pytest.mark.parametrize("is_map", [False, True])
def test_retry_starts_with_the_original_arguments(client: Client, tmp_path: Path, is_map: bool) -> None:
    names = program()
    exec(
        """
def flaky(path, kept=[]):
    global limit
    limit += 1
    kept.append(1)
    items.append(1)
    Config.rate += 1
    if not os.path.exists(path):
        open(path, "w").close()
        raise ValueError("the first attempt")
    return limit, len(kept), len(items), Config.rate
""",
        names,
    )
    eager = client.options(retry_on=ValueError, retries=3)
    paths = [str(tmp_path / f"{each}") for each in range(4)]
    if not is_map:
        found = [eager.submit(names["flaky"], path).result() for path in paths]
    else:
        found = eager.map(names["flaky"], paths)
    assert found == [(2, 1, 2, 2)] * 4


def test_reading_a_result_does_not_change_the_programs_class(client: Client) -> None:
    names = program()
    future = client.submit(names["Trade"], 3)
    exec("Trade.count = 7\nTrade.touch = lambda self: limit", names)
    trade = future.result()
    assert type(trade) is names["Trade"]
    assert (trade.price, names["Trade"].count, trade.touch()) == (3, 7, 1)
    names["limit"] = 5
    assert trade.touch() == 5


@pytest.mark.parametrize("serializer", short_form([None, "pickle"]))
def test_future_as_an_argument_becomes_its_value(
    cluster: SchedulerClusterCombo, client: Client, serializer: str | None
) -> None:
    with Client(cluster.get_address(), serializer=Pickled() if serializer else None) as own:
        future = own.submit(list, (1, 2, 3))
        future.result().append(9)
        assert own.submit(len, future).result() == 3
        if serializer is None:
            assert own.map(len, [future, [future]], chunk_size=2) == [3, 1]
        assert own.get({"a": future, "b": (len, "a")}, ["b"]) == {"b": 3}
        assert client.submit(len, future).result() == 3


KINDS_OF_CLASSES = """
import enum, typing
T = typing.TypeVar("T")

class Pair(typing.NamedTuple):
    a: int
    b: int = 2
class Generic(typing.NamedTuple, typing.Generic[T]):
    a: T
class Slotless:
    __slots__ = ()
class AlsoSlotless(Slotless):
    __slots__ = ()

class Color(enum.Enum):
    RED = 1
    CRIMSON = 1
class Planet(enum.Enum):
    EARTH = (1, 2)
    def __init__(self, mass, radius):
        self.mass, self.radius = mass, radius
class Labelled(int, enum.Enum):
    ONE = 1, "one"
    def __new__(cls, value, label):
        made = int.__new__(cls, value)
        made._value_, made.label = value, label
        return made
class Permission(enum.Flag):
    READ = 1
    WRITE = 2
    BOTH = 3
class Levels(enum.Enum):
    LOW = [1]
    @classmethod
    def grow(cls, found):
        result = [list(cls.LOW.value), list(found.value), found is cls.LOW]
        cls.LOW.value.append(2)
        return result

class Operation(enum.Enum):
    ADD = functools.partial(lambda x, y: x + y, 1)
    def apply(self, other):
        return [self.value(2), self is Operation.ADD, other is self]

class Plugin:
    registry = {}
    def __init_subclass__(cls):
        Plugin.registry[cls.__name__] = cls
class Csv(Plugin):
    def name(self):
        return "csv"
class Excel(Csv):
    def name(self):
        return "excel"
    def names(self):
        return [Plugin.registry[each]().name() for each in sorted(Plugin.registry)] + Plugin.__subclasses__()
"""


@pytest.mark.parametrize(
    "call",
    [
        "[Pair(1), Pair(1)._replace(b=5), Generic[int](3)]",
        "[AlsoSlotless(), hasattr(AlsoSlotless(), '__dict__')][1:]",
        "[Color['CRIMSON'] is Color.RED, sorted(Color.__members__)]",
        "[Planet.EARTH.mass, Planet.EARTH.radius, Planet((1, 2)) is Planet.EARTH]",
        "[Labelled.ONE + 1, Labelled(1).label]",
        "[Permission(3) is Permission.BOTH, Permission['BOTH'], list(Permission)]",
        "Levels.grow(Levels.LOW)",
        "Excel().names()",
    ],
)
def test_classes_of_each_kind_behave_as_in_the_program(client: Client, call: str) -> None:
    names = program()
    exec(KINDS_OF_CLASSES, names)
    exec(f"def function(x): return {call}", names)
    found = [client.submit(names["function"], 0).result() for _ in range(2)]
    found += client.map(names["function"], range(3), chunk_size=3)
    found += graph_in_chunks(client, names["function"], [1, 2])
    assert list(map(repr, found)) == [repr(names["function"](0))] * 7


def test_class_keeps_its_bases_and_name_as_of_the_call(client: Client) -> None:
    names = program()
    exec("class A:\n    name = 'a'\nclass B:\n    name = 'b'\nclass Kind(A):\n    pass", names)
    exec("def look(kind): return Kind.__name__, Kind.name, kind.name, Kind is type(kind)", names)
    kind = names["Kind"]
    for base in "ABA":
        kind.__bases__, kind.__name__ = (names[base],), f"Kind{base}"
        assert client.submit(names["look"], kind()).result() == names["look"](kind())


def test_changed_enum_values_and_attributes_are_sent(client: Client) -> None:
    names = program()
    exec(KINDS_OF_CLASSES, names)
    exec("def look(level): return level.value, Levels.LOW.value, Planet.EARTH.mass", names)
    for step in ("None", "Levels.LOW.value.append(8)", "Planet.EARTH.mass = 7"):
        exec(step, names)
        assert client.submit(names["look"], names["Levels"].LOW).result() == names["look"](names["Levels"].LOW)


def test_enum_members_with_incomparable_values_are_sent(client: Client) -> None:
    names = program()
    exec(KINDS_OF_CLASSES, names)
    add = names["Operation"].ADD
    assert client.submit(add.apply, add).result() == [3, True, True]
    assert client.map(names["Operation"].apply, [add] * 2, [add] * 2, chunk_size=2) == [[3, True, True]] * 2
    assert client.submit(lambda: add).result() is add


def test_reading_a_result_does_not_recreate_the_programs_classes(client: Client) -> None:
    names = program()
    exec(KINDS_OF_CLASSES, names)
    registry = dict(names["Plugin"].registry)
    assert type(client.submit(names["Excel"]).result()) is names["Excel"]
    assert client.map(lambda _: names["Excel"]().name(), range(2), chunk_size=2) == ["excel", "excel"]
    assert names["Plugin"].registry == registry
    assert names["Plugin"].__subclasses__() == [names["Csv"]]


@pytest.mark.parametrize("way", short_form([*WAYS], 2))
def test_calls_do_not_share_arrays_captured_by_the_function(client: Client, way: Callable[..., list[Any]]) -> None:
    numpy = pytest.importorskip("numpy")
    names = {"table": numpy.zeros(3), "numpy": numpy}
    exec("def count(x):\n    table[0] += 1\n    return [float(table[0])]", names)
    assert way(client, names["count"], [[1], [2], [3], [4]]) == [[1.0]] * 4


def test_retry_on_gets_fresh_state_for_each_exception(client: Client, tmp_path: Path) -> None:
    names = program()
    exec(
        """
def flaky(path):
    attempts = len(os.listdir(path))
    open(os.path.join(path, str(attempts)), "w").close()
    if attempts < 2:
        raise ValueError(attempts)
    return attempts
asked = []
def is_first(error):
    asked.append(error)
    return len(asked) == 1
""",
        names,
    )
    paths = [tmp_path / f"{each}" for each in range(2)]
    for path in paths:
        path.mkdir()
    eager = client.options(retry_on=names["is_first"], retries=5)
    assert eager.map(names["flaky"], map(str, paths)) == [2, 2]
