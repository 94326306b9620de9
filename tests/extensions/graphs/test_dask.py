"""Dask's graphs and collections on a cluster of two workers, including Dask's own tests."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from operator import add
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import scaler.dask
from scaler import Client, SchedulerClusterCombo
from scaler.errors import UsageError
from tests.short_forms import short_form

pytestmark = pytest.mark.filterwarnings("ignore")  # Dask's own tests and the libraries below them warn

dask: Any = importlib.import_module("dask")
nodes: Any = importlib.import_module("dask._task_spec")
utils_test: Any = importlib.import_module("dask.utils_test")

MODULES = ("dask.tests.test_delayed", "dask.dataframe.tests.test_reshape")
"""The parameterless tests of these modules run."""
EXCLUDED = {
    "test_traverse_false": "expects that a value is the same object: here it is a copy",
    "test_delayed_compute_forward_kwargs": "expects that an unknown keyword is ignored: here it is an error",
}


@pytest.fixture(scope="module")
def client(cluster: SchedulerClusterCombo) -> Iterator[Client]:
    with Client(cluster.get_address()) as connected:
        yield connected


@pytest.fixture
def get(client: Client) -> Callable[..., Any]:
    return partial(scaler.dask.get, client=client)


# -- Dask's own tests


class TestGet(utils_test.GetFunctionTestMixin):  # type: ignore[misc]
    """Dask's tests for external schedulers."""

    @pytest.fixture(autouse=True)
    def on_the_cluster(self, get: Callable[..., Any]) -> None:
        self.get = get

    def test_get_stack_limit(self) -> None:
        """Like Dask's, with fewer tasks: still more than Python's recursion limit."""
        graph: dict[str, Any] = {f"x{number + 1}": (utils_test.inc, f"x{number}") for number in range(2000)}
        assert self.get({**graph, "x0": 0}, "x2000") == 2000


def applying(module: ModuleType) -> list[Callable[[], None]]:
    found = [each for name, each in vars(module).items() if name.startswith("test") and inspect.isfunction(each)]
    return [test for test in found if not inspect.signature(test).parameters and test.__name__ not in EXCLUDED]


@pytest.mark.parametrize("name", short_form(MODULES))
def test_collections_tests_pass(name: str, get: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []

    def counting(graph: Any, keys: Any, **options: Any) -> Any:
        computed.append(keys)
        return get(graph, keys, **options)

    tests = applying(pytest.importorskip(name, exc_type=ImportError))
    with dask.config.set(scheduler=counting):
        for test in tests:
            try:
                test()
            except pytest.skip.Exception:
                continue
            except BaseException as error:
                error.add_note(f"in {test.__name__} of {name}")
                raise
    assert computed, "the tests compute on the cluster"


# -- collections


def test_arrays_bags_dataframes_and_delayed_calls_compute(get: Callable[..., Any]) -> None:
    array, bag, dataframe = (importlib.import_module(f"dask.{name}") for name in ("array", "bag", "dataframe"))
    pandas: Any = importlib.import_module("pandas")
    ones = array.ones((40, 40), chunks=(10, 10))
    table = dataframe.from_pandas(pandas.DataFrame({"a": [0, 1] * 10, "b": range(20)}), npartitions=4)
    counts = bag.from_sequence(range(10), npartitions=3).map(lambda number: number % 2).frequencies()
    total = dask.delayed(sum)([dask.delayed(abs)(-number) for number in range(4)])
    found = dask.compute((ones + ones.T).sum(), table.groupby("a").b.sum(), counts, total, scheduler=get)
    assert found[0] == 3200
    assert found[1].to_dict() == {0: 90, 1: 100}
    assert sorted(found[2]) == [(0, 5), (1, 5)]
    assert found[3] == 6


def test_compute_forwards_its_keywords(client: Client, cluster: SchedulerClusterCombo) -> None:
    value = dask.delayed(add)(1, 2)
    assert value.compute(scheduler=scaler.dask.get, client=client, cpus=1) == 3
    assert value.compute(scheduler=scaler.dask.get, address=cluster.get_address()) == 3
    with pytest.raises(TypeError, match="num_workers"):
        value.compute(scheduler=scaler.dask.get, client=client, num_workers=3)
    with pytest.raises(UsageError, match="not both"):
        value.compute(scheduler=scaler.dask.get, client=client, address=cluster.get_address())


def nested() -> Any:
    return dask.delayed(add)(20, 1).compute(scheduler=scaler.dask.get)


def test_task_computes_on_its_own_cluster(client: Client) -> None:
    assert client.submit(nested).result() == 21


# -- graphs of nodes


def test_runs_dask_nodes(get: Callable[..., Any]) -> None:
    task, ref = nodes.Task, nodes.TaskRef
    graph = {
        "data": nodes.DataNode("data", ("data", 5)),
        "one": 1,
        "name": nodes.DataNode("name", "one"),
        "pair": nodes.DataNode("pair", (abs, -1)),
        "items": nodes.DataNode("items", ["one", (abs, -1)]),
        "sum": task("sum", add, ref("one"), task(None, add, ref("one"), 10)),
        "alias": nodes.Alias("alias", "sum"),
        "list": [task(None, abs, -5), "alias", [nodes.Alias("one"), nodes.DataNode(None, "one")]],
        "call": (sum, [task(None, abs, -5), "alias", ref("one")]),
        "dict": task("dict", dict, nodes.Dict({"x": ref("sum")})),
    }
    found = dict(zip(graph, get(graph, list(graph)), strict=True))
    assert found.pop("data") == ("data", 5)
    assert found == {
        "one": 1,
        "name": "one",
        "pair": (abs, -1),
        "items": ["one", (abs, -1)],
        "sum": 12,
        "alias": 12,
        "list": [5, 12, [1, "one"]],
        "call": 18,
        "dict": {"x": 12},
    }


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        ({"a": nodes.Task("a", abs, nodes.TaskRef("b"))}, "needs 'b', but the graph has no such key"),
        ({"a": nodes.Alias("a", "b")}, "needs 'b', but the graph has no such key"),
        ({"a": nodes.Alias("a", "b"), "b": nodes.Task("b", abs, nodes.TaskRef("a"))}, "the graph has a cycle"),
    ],
)
def test_rejects_a_node_that_cannot_run(get: Callable[..., Any], graph: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        get(graph, "a")


def test_client_get_rejects_dask_nodes(client: Client) -> None:
    with pytest.raises(UsageError, match=r"compute it with scaler\.dask\.get"):
        client.get({"a": nodes.Task("a", abs, -1)}, ["a"])


def fails_once(folder: str, value: int) -> int:
    marker = Path(folder, str(value))
    if not marker.exists():
        marker.touch()
        raise ValueError(value)
    return value


def test_node_may_have_its_own_options(get: Callable[..., Any], tmp_path: Path) -> None:
    options: Any = {"retry_on": ValueError, "retry_delay": 0.0}
    folder = str(tmp_path)
    graph = {"one": nodes.DataNode("one", 1), "once": nodes.Task("once", fails_once, folder, nodes.TaskRef("one"))}
    assert get(graph, "once", node_options={"once": options}) == 1
    assert get({"once": (fails_once, folder, 2)}, "once", node_options={"once": options}) == 2
    with pytest.raises(UsageError, match="no computation with this key"):
        get(graph, "once", node_options={"one": options})
