"""Clients in other languages: functions by name, values as JSON, over the protocol only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.extensions.failures.bundle import read_bundle, replay
from scaler.security.directory import KeysDirectory
from scaler.security.private_files import write_private
from tests.integration.bare_peer import INLINE_BYTES, JSON, BareClient, TaskFailedError
from tests.integration.free_ports import free_addresses


@pytest.fixture(scope="module")
def combo() -> Iterator[SchedulerClusterCombo]:
    """A cluster without authentication."""
    with SchedulerClusterCombo(free_addresses("0.0.0.0")[0], 2, insecure_no_auth=True) as combo:
        yield combo


@pytest.fixture
def address(combo: SchedulerClusterCombo) -> str:
    """Where Python also connects over ZeroMQ and is the same user."""
    return combo.get_address().replace("127.0.0.1", "127.0.0.2")


@pytest.fixture
def peer(address: str) -> Iterator[BareClient]:
    with BareClient(address) as client:
        yield client


def names(*types: str) -> bytes:
    return bytes([JSON]) + json.dumps(types).encode()


def failure(peer: BareClient, task: bytes) -> TaskFailedError:
    with pytest.raises(TaskFailedError) as raised:
        peer.result(task)
    return raised.value


def test_calls_a_function_by_name_with_json_arguments(peer: BareClient) -> None:
    assert peer.result(peer.submit("math:factorial", {"args": [20]})) == 2432902008176640000
    assert peer.result(peer.submit("builtins:sorted", {"args": [[2, 3, 1]], "kwargs": {"reverse": True}})) == [3, 2, 1]
    assert peer.result(peer.submit("os.path:join", {"args": ["a", "ü"]})) == "a/ü"
    assert peer.result(peer.submit("builtins:dict", {"kwargs": {"none": None, "half": 0.5}})) == {
        "none": None,
        "half": 0.5,
    }
    assert peer.result(peer.submit("builtins:dict", {})) == {}
    assert peer.result(peer.submit("builtins:dict.fromkeys", {"args": ["ab"]})) == {"a": None, "b": None}
    assert peer.result(peer.submit("gc:collect", {"args": [0]})) >= 0


def test_large_arguments_and_results_go_through_the_object_storage(peer: BareClient) -> None:
    numbers = list(range(100_000))
    assert (
        peer.result(peer.submit("builtins:sorted", {"args": [numbers], "kwargs": {"reverse": True}})) == numbers[::-1]
    )
    assert peer.result(peer.submit("operator:mul", {"args": ["x", 2 * INLINE_BYTES]})) == "x" * 2 * INLINE_BYTES


def test_arguments_may_be_task_results_and_stored_objects(peer: BareClient) -> None:
    root = peer.submit("math:sqrt", {"args": [16]})
    stored = peer.put(bytes([JSON]) + b"[5, 6]")
    large = peer.submit("operator:mul", {"args": ["x", 2 * INLINE_BYTES]})
    arguments = {"kwargs": {"root": {"$input": 0}, "stored": {"$input": 1}, "nested": [{"$input": 0}]}}
    found = peer.result(peer.submit("builtins:dict", arguments, references=[root, stored]))
    assert found == {"root": 4.0, "stored": [5, 6], "nested": [{"$input": 0}]}
    assert peer.result(peer.submit("builtins:len", {"args": [{"$input": 0}]}, references=[large])) == 2 * INLINE_BYTES


def test_exception_arrives_as_texts(peer: BareClient) -> None:
    failed = failure(peer, peer.submit("json:loads", {"args": ["{"]}))
    assert failed.type == "json.decoder.JSONDecodeError"
    assert failed.text.startswith("Expecting property name")
    assert "in decode" in failed.traceback


def test_exceptions_named_in_retry_on_are_retried(tmp_path: Path, peer: BareClient) -> None:
    counter = tmp_path / "attempts"
    code = f"open({str(counter)!r}, 'a').write('x'); 1 / (len(open({str(counter)!r}).read()) // 3)"
    task = peer.submit("builtins:exec", {"args": [code]}, retryOn=names("builtins:ArithmeticError"), retryDelays=[{}])
    assert peer.result(task) is None
    assert counter.read_text() == "xxx"


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        ("sqrt", {}, "a function's name must be module:function, such as math:sqrt, not 'sqrt'"),
        ("math:", {}, "a function's name must be module:function, such as math:sqrt, not 'math:'"),
        ("shop.tax:rate", {}, "function 'shop.tax:rate' cannot be imported on its worker: ModuleNotFoundError"),
        ("math:sqr", {}, "did you mean 'sqrt'?"),
        ("math:pi", {}, "'math:pi' is of type float, which cannot be called"),
        ("math:sqrt", [4], 'arguments must be a map of "args" (a list) and "kwargs" (a map with string keys)'),
        ("math:sqrt", {"arg": [4]}, "and nothing else"),
        ("math:sqrt", {"args": 4}, 'arguments must be a map of "args"'),
        ("math:sqrt", {"args": [{"$input": 0}]}, "an argument names reference 0 of its task, which does not exist"),
        ("math:sqrt", {"args": [{"$input": "0"}]}, "an argument names reference '0' of its task"),
        ("builtins:set", {}, "the result (builtins.set) cannot be serialized: TypeError"),
        ("builtins:float", {"args": ["nan"]}, "the result (builtins.float) cannot be serialized: ValueError"),
        ("builtins:chr", {"args": [0xD800]}, "the result (builtins.str) cannot be serialized: UnicodeEncodeError"),
    ],
)
def test_serialization_errors_of_calls_by_name_are_reported(
    peer: BareClient, function: str, arguments: object, text: str
) -> None:
    failed = failure(peer, peer.submit(function, arguments))
    assert failed.type == "scaler.errors.SerializationError"
    assert text in failed.text


def test_task_is_cancelled(peer: BareClient) -> None:
    first = peer.submit("builtins:dict", {})
    task = peer.submit("time:sleep", {"args": [1000]})
    assert peer.result(first) == {}
    peer.scheduler.say("cancel", ids=task)
    assert failure(peer, task).outcome == 3


def test_python_client_reruns_a_failed_task_of_another_language(address: str, tmp_path: Path, peer: BareClient) -> None:
    path = tmp_path / "text"
    name = peer.submit("builtins:str", {"args": [str(path)]})
    task = peer.submit("os.path:getsize", {"args": [{"$input": 0}]}, references=[name])
    assert failure(peer, task).type == "FileNotFoundError"
    path.write_text("five!")
    with Client(address, insecure_no_auth=True) as python:
        assert python.replay(task.hex()) == 5
        assert replay(read_bundle(python.bundle(task.hex(), tmp_path / "task.bundle"))[0], pdb=False) == 5


def test_encrypted_connection_authenticates_the_peer(tmp_path: Path) -> None:
    keys = KeysDirectory.create(tmp_path / "keys", "test")
    credential = tmp_path / "node.credentials"
    write_private(credential, keys.add("node", "client").to_text(), replace=True)
    with (
        SchedulerClusterCombo(n_workers=1, credentials=str(keys.path)) as combo,
        BareClient(combo.get_address(), str(credential)) as peer,
    ):
        numbers = list(range(20_000))
        assert peer.result(peer.submit("builtins:sorted", {"args": [numbers]})) == numbers


def test_client_at_the_monitor_address_is_refused_with_the_reason(combo: SchedulerClusterCombo) -> None:
    with BareClient(combo.get_monitor_address(), clientDetails=None) as peer:
        peer.submit("math:sqrt", {"args": [4]})
        refused, _ = peer.scheduler.next("refused")
    assert refused.text == "this address is for monitors and does not accept Submit: use the scheduler's address"
