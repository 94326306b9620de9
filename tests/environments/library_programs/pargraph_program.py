"""Calls of a library that makes graphs of functions.

Prints the name of each check that has passed.
"""

from typing import Annotated

import numpy as np
from pargraph import GraphEngine, Result, delayed, graph

from scaler import Client, ScalerExecutor, SchedulerClusterCombo


@delayed
def within(array: np.ndarray, low: float, high: float) -> np.ndarray:
    return array[(array >= low) & (array < high)]


@delayed
def ordered(array: np.ndarray) -> np.ndarray:
    return np.sort(array)


@delayed
def joined(*arrays: np.ndarray) -> np.ndarray:
    return np.concatenate(arrays)


@graph
def sorted_in_parts(array: np.ndarray, parts: int) -> np.ndarray:
    return joined(*(ordered(within(array, part / parts, (part + 1) / parts)) for part in range(parts)))


@delayed
def add(left: int, right: int) -> int:
    return left + right


@delayed
def divide(left: int, right: int) -> float:
    return left / right


@delayed
def extremes(array: np.ndarray) -> tuple[Annotated[float, Result("low")], Annotated[float, Result("high")]]:
    return float(array.min()), float(array.max())


@graph
def middle(array: np.ndarray) -> float:
    low, high = extremes(array)
    return (low + high) / 2


@graph
def twice(value: int) -> int:
    return add(value, value)


@graph
def eight_times(value: int) -> int:
    return twice(twice(twice(value)))


def plain_graphs(client: Client) -> None:
    tasks = {"x": 1, "y": 2, "z": (max, "x", "y"), "w": (sum, ["x", "y", "z"]), "v": [(min, "w", "z"), "x"]}
    engine = GraphEngine(client)
    assert engine.get(tasks, "w") == 5
    assert engine.get(tasks, ["x", ["z", "w"]]) == [1, [2, 5]]
    assert engine.get(tasks, ["v", "y"]) == [[2, 1], 2]
    powers = {f"power {n}": (pow, 2, n) for n in range(50)}
    assert engine.get(powers, list(powers)) == [2**n for n in range(50)]


def options(client: Client) -> None:
    assert GraphEngine(client).get({"x": (max, 1, 2)}, "x", profiling=True) == 2


def functions(client: Client) -> None:
    array = np.random.default_rng(1).random(20_000)
    tasks, keys = sorted_in_parts.to_graph(parts=4).to_dict(array=array)
    (found,) = GraphEngine(client).get(tasks, keys)
    assert (found == np.sort(array)).all()
    assert (sorted_in_parts(array, 3) == np.sort(array)).all()


def several_results(client: Client) -> None:
    tasks, keys = middle.to_graph().to_dict(array=np.arange(11.0))
    assert GraphEngine(client).get(tasks, keys) == [5.0]


def nested_graphs(client: Client) -> None:
    for made in (eight_times.to_graph(), eight_times.to_graph().explode_subgraphs().fuse_sequential()):
        tasks, keys = made.to_dict(value=3)
        assert GraphEngine(client).get(tasks, keys) == [24]


def without_the_engine(client: Client) -> None:
    """The client computes the library's graphs itself, so values stay on the workers."""
    array = np.random.default_rng(2).random(20_000)
    tasks, keys = sorted_in_parts.to_graph(parts=3).to_dict(array=array)
    (found,) = client.get(tasks, keys).values()
    assert (found == np.sort(array)).all()
    tasks, keys = eight_times.to_graph().to_dict(value=3)
    assert list(client.get(tasks, keys).values()) == [24]


def exceptions(client: Client) -> None:
    for compute in (GraphEngine(client).get, client.get):
        tasks, keys = divide.to_graph().to_dict(left=1, right=0)
        try:
            compute(tasks, keys)
        except ZeroDivisionError:
            continue
        raise AssertionError("the exception of a node is the graph's")


def an_executor(client: Client) -> None:
    with ScalerExecutor(client) as executor:
        tasks, keys = eight_times.to_graph().to_dict(value=5)
        engine = GraphEngine(client)
        engine.set_parallel_backend(executor)
        assert engine.get(tasks, keys) == [40]


def inside_a_task(client: Client) -> None:
    def compute(client: Client) -> list[int]:
        tasks, keys = eight_times.to_graph().to_dict(value=7)
        values: list[int] = GraphEngine(client).get(tasks, keys)
        return values

    futures = [client.submit(compute, client) for _ in range(3)]
    assert [future.result() for future in futures] == [[56]] * 3


def main() -> None:
    with SchedulerClusterCombo(n_workers=2) as cluster, Client(cluster.get_address(), timeout_seconds=20) as client:
        for check in (
            plain_graphs,
            options,
            functions,
            several_results,
            nested_graphs,
            without_the_engine,
            exceptions,
            an_executor,
            inside_a_task,
        ):
            check(client)
            print(check.__name__)


if __name__ == "__main__":
    main()
