"""The standard library's own tests of `multiprocessing.Pool`, run on a cluster of two workers."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from scaler import Pool, SchedulerClusterCombo

standard: Any = pytest.importorskip("test._test_multiprocessing", reason="this Python comes without its own tests")

EXCLUDED = {
    "test_imap_handle_iterable_exception": "the results of all items before the exception come, also of its chunk",
    "test_make_pool": "reads the private list of processes; test_pool.py has the refused numbers",
    "test_map_unplicklable": "what cannot be pickled raises SerializationError, which names the item",
    "test_resource_warning": "expects the text of another class; test_pool.py has the warning",
    "test_traceback": "reads a private class: the cause is Scaler's RemoteTraceback",
    "test_unpickleable_result": "its result, a lambda, can be sent",
    "test_pool_worker_lifetime": "reads the private list of processes; test_pool.py has maxtasksperchild",
    "test_worker_finalization_via_atexit_handler_of_multiprocessing": "starts a pool of multiprocessing",
}
"""Tests of the standard library that do not apply, with reasons."""


class StandardCase(unittest.TestCase):
    """Creates the pools of the tests on this module's cluster."""

    TYPE = "processes"
    ALLOWED_TYPES = ("processes",)
    address: ClassVar[str]

    @classmethod
    def Pool(cls, processes: int, maxtasksperchild: Any = None) -> Pool:  # noqa: N802 (the tests call it so)
        if maxtasksperchild is None or (isinstance(maxtasksperchild, int) and maxtasksperchild > 0):
            return Pool(address=cls.address)  # the numbers would start a cluster for each pool
        return Pool(processes, maxtasksperchild=maxtasksperchild)


def applying(name: str, case: Any) -> type[unittest.TestCase]:
    """Return the applicable tests of a case of the standard library."""
    excluded: dict[str, Any] = dict.fromkeys(EXCLUDED.keys() & {*dir(case)})
    return type(name, (case, StandardCase), {**excluded, "__module__": __name__})


TestOfPool = applying("TestOfPool", standard._TestPool)  # noqa: SLF001 (they have no other name)
TestOfErrors = applying("TestOfErrors", standard._TestPoolWorkerErrors)  # noqa: SLF001
TestOfLifetime = applying("TestOfLifetime", standard._TestPoolWorkerLifetime)  # noqa: SLF001


@pytest.fixture(scope="module", autouse=True)
def _on_the_cluster(cluster: SchedulerClusterCombo) -> Any:
    StandardCase.address = cluster.get_address()
    with pytest.MonkeyPatch.context() as patch:
        made: Callable[..., Pool] = StandardCase.Pool
        patch.setattr(standard.multiprocessing, "Pool", made)  # some tests create pools with it
        yield


def test_files_excluded_from_the_standard_tests_exist() -> None:
    cases = (standard._TestPool, standard._TestPoolWorkerErrors, standard._TestPoolWorkerLifetime)  # noqa: SLF001
    assert {name for case in cases for name in dir(case)} >= EXCLUDED.keys()
