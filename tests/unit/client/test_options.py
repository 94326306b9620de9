"""Task options: rejected values, and the form in which tasks contain the options."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scaler import Exponential
from scaler.client.options import MAX_DELAYS, OptionKeywords, Options, options_of
from scaler.errors import SerializationError, UsageError
from scaler.extensions.chunk_options import chunk_size_of, why_alone
from scaler.extensions.graphs.run import nodes_with_options
from scaler.serialization import load_retry_on


def carried(**given: Any) -> Options:
    return options_of(given, "submit_verbose")  # type: ignore[arg-type]


def is_busy(error: BaseException) -> bool:
    return "busy" in str(error)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"priority": "high"}, "priority is 'high', but must be an integer from"),
        ({"retries": -1}, "retries is -1, but must be an integer from 0 to 10000"),
        ({"retries": True}, "retries is True, but must be an integer"),
        ({"losses": -1}, "losses is -1, but must be an integer from 0"),
        ({"preemptible": "yes"}, "preemptible is 'yes', but must be True, False, or a grace period above 0"),
        ({"preemptible": 0}, "preemptible is 0, but must be True, False, or a grace period above 0"),
        ({"preemptible": 1e6}, "preemptible is 1000000.0, but must be True, False, or a grace period"),
        ({"preemptible": True, "retries": 0}, "retries=0 starts a task at most once: leave one out"),
        ({"losses": 2, "retries": 0}, "losses is 2, but retries=0 starts a task at most once: leave one out"),
        ({"retry_on": "ValueError"}, "retry_on is 'ValueError', but must be an exception type, a tuple of them, or"),
        ({"retry_on": (ValueError, 5)}, "retry_on takes exception types, not 5"),
        ({"retry_on": int}, "retry_on takes exception types, not <class 'int'>"),
        ({"retry_delay": -1}, "retry_delay is -1, but must be from 0 to 1e+09; 0 means an immediate retry"),
        ({"retry_delay": math.nan}, "retry_delay is nan, but must be"),
        ({"retry_delay": lambda _: "soon"}, "retry_delay(1) is 'soon', but must be from 0"),
        ({"retry_delay": lambda attempt: 1 / (attempt - 2)}, "retry_delay(1) is -1.0"),
        ({"retry_delay": lambda attempt: 1 / (attempt - 1)}, "retry_delay(1) raised ZeroDivisionError"),
        ({"timeout_seconds": "5"}, "timeout_seconds is '5', but must be from 0 to 1e+09; 0 means no limit"),
        ({"capabilities": "gpu"}, "capabilities is 'gpu', but must be a dict such as"),
        ({"memory": "8 apples"}, "memory is '8 apples' is not a size such as 8GB"),
        ({"memory": 0}, "memory is 0, but must be bytes above 0"),
        ({"cpus": -2}, "cpus is -2, but must be a number above 0"),
        ({"gpu": 1.5}, "gpu is 1.5: a task takes a fraction of one GPU, or whole GPUs"),
        ({"cpus": 2, "capabilities": {"cpus": 2}}, "are duplicates"),
        ({"name": 5}, "name is 5, but must be a string"),
        ({"near": 7}, "near is 7, but must be a string of 1 to 200 printable characters"),
        ({"near": ""}, "near is '', but must be a string of 1 to 200 printable characters"),
        ({"near": "a\nb"}, "near is 'a\\nb', but must be a string of 1 to 200 printable characters"),
        ({"near": "m" * 201}, "but must be a string of 1 to 200 printable characters"),
        ({"tags": 5}, "tags is 5, but must be a string or several strings"),
        ({"tags": [""]}, "a tag is '', but must be a string of 1 to 200 printable characters"),
        ({"tags": map(str, range(17))}, "a task has at most 16 tags, not 17"),
        ({"profiling": "yes"}, "profiling is 'yes', but must be True, False, or None"),
        ({"stream_output": 2}, "stream_output is 2, but must be"),
        ({"expected_seconds": -1}, "expected_seconds is -1, but must be from 0 to 1e+09; 0 says nothing"),
    ],
)
def test_invalid_option_is_rejected_with_its_name_and_value(given: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        carried(**given)
    assert text in str(caught.value)


def test_unknown_keyword_raises_a_type_error_with_the_valid_ones() -> None:
    given: Any = {"chunksize": 5}
    with pytest.raises(TypeError, match=r"'retrys'; did you mean 'retries'\? The task options are"):
        options_of({"retrys": 5}, "options")  # type: ignore[typeddict-unknown-key]
    with pytest.raises(TypeError, match=r"'replicas'; client\.persist\(future\) keeps a second copy"):
        options_of({"replicas": 2}, "options")  # type: ignore[typeddict-unknown-key]
    with pytest.raises(
        TypeError, match=r"map got an unexpected keyword argument 'chunksize'; the task options .* retries"
    ):
        options_of(given, "map")


@pytest.mark.parametrize(("given", "seconds"), [(False, 0.0), (True, 5.0), (30, 30.0), (0.5, 0.5)])
def test_preemptible_tasks_have_a_grace_period(given: Any, seconds: float) -> None:
    assert carried(preemptible=given).preemptible == seconds
    assert carried().preemptible == 0.0


def test_client_only_values_are_unchanged() -> None:
    owner = object()
    base = Options(profiling=True, stream_output=True, owner=owner)
    assert options_of({"priority": 5}, "options", base) == base._replace(priority=5)
    assert options_of({"profiling": False}, "options", base) == base._replace(profiling=False)


def test_types_and_predicates_decide_what_is_retried() -> None:
    one, several = (load_retry_on(carried(retry_on=each).retry_on) for each in (OSError, [KeyError, OSError]))
    assert (one(TimeoutError()), one(KeyError())) == (True, False)
    assert (several(TimeoutError()), several(KeyError()), several(ValueError())) == (True, True, False)
    assert not load_retry_on(carried().retry_on)(ValueError())
    for predicate in (is_busy, lambda error: "busy" in str(error)):
        found = load_retry_on(carried(retry_on=predicate).retry_on)
        assert (found(ValueError("it is busy")), found(ValueError("gone"))) == (True, False)


def test_rejects_a_predicate_that_cannot_be_pickled() -> None:
    import threading  # noqa: PLC0415 (of this test alone)

    lock = threading.Lock()
    with pytest.raises(SerializationError, match="retry_on"):
        carried(retry_on=lambda _: lock.locked())


# -- delays


def test_predicate_is_called_for_every_possible_retry() -> None:
    asked: list[int] = []

    def delay(attempt: int) -> float:
        asked.append(attempt)
        return attempt / 10

    assert carried(retries=3, retry_delay=delay).retry_delays == (0.1, 0.2, 0.3)
    assert asked == [1, 2, 3]
    assert len(carried(retries=10_000, retry_delay=delay).retry_delays) == MAX_DELAYS


def test_growing_delays_double_up_to_their_cap() -> None:
    assert Exponential(1, 10, 0).delays() == (1, 2, 4, 8, 10)
    assert Exponential(0.5, 4).delays() == (0.5, 1, 2, 4)
    assert Exponential(3, 3).delays() == (3,)
    assert Exponential(0, 5).delays() == (0,)
    assert carried(retry_delay=Exponential(1, 2, 0.25)).retry_jitter == 0.25


# -- chunks and graphs


@pytest.mark.parametrize(
    ("options", "serializer", "why"),
    [
        (Options(), None, ""),
        (Options(expected_seconds=2.0, losses=1), None, ""),
        (Options(retries=0), None, "retries=0"),
        (Options(retry_on=b"x"), None, "retry_on"),
        (Options(timeout_seconds=1.0), None, "timeout_seconds"),
        (Options(), object(), "a serializer of the client"),
    ],
)
def test_call_with_limits_is_the_only_one_of_its_task(options: Options, serializer: object, why: str) -> None:
    assert why_alone(options, serializer) == why


def test_chunk_size_without_effect_is_refused() -> None:
    assert [chunk_size_of(size, "") for size in (None, 1, 30)] == [None, 1, 30]
    assert [chunk_size_of(size, "retry_on") for size in (None, 1)] == [1, 1]
    with pytest.raises(UsageError, match="chunk_size is 30, but with retry_on, each call is a task: remove one"):
        chunk_size_of(30, "retry_on")
    for size in (0, True, 2.0):
        with pytest.raises(UsageError, match=r"chunk_size is .*, but must be an integer of at least 1"):
            chunk_size_of(size, "")  # type: ignore[arg-type]


def test_node_options_override_options_for_all() -> None:
    graph = {"one": 1, "two": (abs, "one")}
    common: OptionKeywords = {"retries": 7, "priority": 1}

    def checked(given: OptionKeywords) -> Options:
        return options_of(given, "get")

    found = nodes_with_options(graph, {"two": {"priority": 2}}, common, checked)
    assert found == {"two": Options(retries=7, priority=2)}
    for wrong, text in (
        ({"one": {"priority": 2}}, "the graph has no computation with this key"),
        ({"six": {"priority": 2}}, "node_options names key 'six'"),
        ({"two": 5}, "node_options of key 'two' is 5, but must be a dict such as"),
        ({"two": {"retries": -1}}, "node_options of key 'two': retries is -1"),
        ({"two": {"tries": 1}}, "node_options of key 'two': get got an unexpected keyword argument 'tries'"),
        (5, "node_options is 5, but must map keys"),
    ):
        given: Any = wrong
        with pytest.raises(UsageError) as caught:
            nodes_with_options(graph, given, {}, checked)
        assert text in str(caught.value)


def test_near_option_becomes_a_need_sorted_among_others() -> None:
    assert carried(near="model 7").needs == (("near:model 7", 0.0),)
    assert carried(near="a", memory=5, capabilities={"zfs": None}).needs == (
        ("memory", 5.0),
        ("near:a", 0.0),
        ("zfs", 0.0),
    )
    assert carried(near=None).needs == ()
