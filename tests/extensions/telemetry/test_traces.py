"""Traces of a real cluster, in a collector and in the program's own exporter."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from scaler import AsyncClient, Client, SchedulerClusterCombo
from scaler.errors import UsageError
from scaler.serialization.exceptions import remote_traceback
from tests.extensions.telemetry.collector import Collector, serve
from tests.waiting import until, wait_for_file


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with serve() as collector:
        yield collector


@pytest.fixture(scope="module")
def cluster(collector: Collector) -> Iterator[SchedulerClusterCombo]:
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.address
    try:
        with SchedulerClusterCombo(n_workers=1, telemetry_endpoint=collector.address) as cluster:
            yield cluster
    finally:
        del os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]


@pytest.fixture(scope="module")
def provider() -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    trace.set_tracer_provider(provider)
    return provider


@pytest.fixture
def made(provider: TracerProvider) -> InMemorySpanExporter:
    """The spans of this program."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


@pytest.fixture
def client(cluster: SchedulerClusterCombo, collector: Collector, made: InMemorySpanExporter) -> Iterator[Client]:
    assert not made.get_finished_spans()
    collector.spans.clear()
    with Client(cluster.get_address()) as client:
        client.trace()
        yield client


def ended(made: InMemorySpanExporter, name: str, count: int = 1) -> list[ReadableSpan]:
    """Wait for so many spans of this program. A call's span ends shortly after its future."""
    until(lambda: sum(span.name == name for span in made.get_finished_spans()) >= count)
    found = [span for span in made.get_finished_spans() if span.name == name]
    assert len(found) == count
    return found


def hexadecimal(span: Any) -> str:
    return format(span.context.span_id, "016x")


def current() -> tuple[str, str]:
    """Return the ids of the current trace and span."""
    found = trace.get_current_span().get_span_context()
    return format(found.trace_id, "032x"), format(found.span_id, "016x")


def outer(number: int) -> tuple[Any, ...]:
    with Client() as client:
        return current(), client.submit(inner, number).result()


def inner(_number: int) -> tuple[Any, ...]:
    random.seed(7)
    with trace.get_tracer("user").start_as_current_span("inside"):
        return current(), baggage.get_baggage("user")


def fail_once(note: Path) -> str:
    if not note.exists():
        note.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "second"


def divide(number: int) -> float:
    return 1 / number


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no text")


def refuse_text() -> None:
    raise SilentError


def join(**options: str) -> str:
    return " ".join(options[name] for name in sorted(options))


def add(first: tuple[str, str], second: tuple[str, str]) -> list[str]:
    return [*first, *second]


def spoil() -> tuple[str, str]:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return current()


def wait(begun: Path, go: Path) -> None:
    begun.touch()
    wait_for_file(go)


async def in_coroutine() -> tuple[str, str]:
    await asyncio.sleep(0)
    return current()


def test_nested_task_belongs_to_the_callers_trace(
    client: Client, made: InMemorySpanExporter, collector: Collector
) -> None:
    with trace.get_tracer("test").start_as_current_span("caller") as caller:
        attached = context.attach(baggage.set_baggage("user", "ann"))
        (first, (second, user)) = client.submit(outer, 1).result()
        context.detach(attached)
    (call,) = ended(made, "outer")
    assert call.parent is not None
    assert call.parent.span_id == caller.get_span_context().span_id
    (run,) = collector.of("scaler-worker", "outer")
    assert (run.parent_id, (run.trace_id, run.span_id)) == (hexadecimal(call), first)
    (inside,) = collector.of("scaler-worker", "inside")
    calls = {span.span_id: span for span in collector.of("scaler-worker", "inner", 2)}
    nested_run = calls[inside.parent_id]
    nested_call = calls[nested_run.parent_id]
    assert nested_call.parent_id == run.span_id
    assert second == (inside.trace_id, inside.span_id)
    assert user == "ann"
    (queued,) = collector.of("scaler-scheduler", "outer queued")
    assert queued.parent_id == hexadecimal(call)
    assert queued.attributes["scaler.attempts"] == 1
    assert queued.start < queued.end <= run.end
    assert {span.trace_id for span in collector.spans} == {format(caller.get_span_context().trace_id, "032x")}


def test_equally_seeded_tasks_have_different_spans(client: Client, collector: Collector) -> None:
    with trace.get_tracer("test").start_as_current_span("caller"):
        for number in range(4):
            client.submit(inner, number).result()
    spans = [*collector.of("scaler-worker", "inner", 4), *collector.of("scaler-worker", "inside", 4)]
    assert len({span.span_id for span in spans}) == 8


def test_clients_of_one_program_trace_independently(
    client: Client, cluster: SchedulerClusterCombo, made: InMemorySpanExporter, collector: Collector
) -> None:
    with Client(cluster.get_address()) as other:
        other.trace()
        assert client.submit(divide, 1).result() == other.submit(divide, 1).result() == 1
    calls = ended(made, "divide", 2)
    runs = collector.of("scaler-worker", "divide", 2)
    assert {run.parent_id for run in runs} == {hexadecimal(call) for call in calls}
    assert len({run.trace_id for run in runs}) == 2


def test_unsampled_tasks_have_no_spans(client: Client, made: InMemorySpanExporter, collector: Collector) -> None:
    unsampled = TracerProvider(ParentBased(ALWAYS_OFF), shutdown_on_exit=False).get_tracer("test")
    with unsampled.start_as_current_span("caller"):
        assert client.submit(current).result() == (32 * "0", 16 * "0")
        assert client.map(abs, [-1]) == [1]
    client.trace(ratio=0)
    assert client.submit(current).result() == (32 * "0", 16 * "0")
    client.trace(ratio=1)
    assert client.submit(divide, 1).result() == 1
    collector.of("scaler-worker", "divide")
    ended(made, "divide")
    assert {span.name for span in collector.spans} <= {"divide", "divide queued"}
    assert {span.name for span in made.get_finished_spans()} == {"divide"}


def test_exceptions_are_in_the_spans_of_call_and_run(
    client: Client, made: InMemorySpanExporter, collector: Collector
) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        client.submit(divide, 0).result()
    found = remote_traceback(raised.value)
    assert found is not None
    assert "in divide" in found.text
    assert not any(name in found.text for name in ("calling.py", "sending.py")), "only the user's frames"
    (call,) = ended(made, "divide")
    assert call.status.description == "ZeroDivisionError: division by zero"
    assert [event.name for event in call.events] == ["exception"]
    (run,) = collector.of("scaler-worker", "divide")
    assert (run.status, run.events) == ("ZeroDivisionError: division by zero", ["exception"])


def test_an_exception_without_a_text_remains_the_result(client: Client, made: InMemorySpanExporter) -> None:
    error = client.submit(refuse_text).exception()
    assert type(error).__name__ == "SilentError"
    ended(made, "refuse_text")


def test_scheduler_names_attempts_whose_processes_died(client: Client, collector: Collector, tmp_path: Path) -> None:
    assert client.submit(fail_once, tmp_path / "note").result() == "second"
    (queued,) = collector.of("scaler-scheduler", "fail_once queued")
    assert (queued.attributes["scaler.attempts"], queued.events) == (2, ["failed attempt"])
    collector.of("scaler-worker", "fail_once")


def test_dependencies_of_a_graph_are_links(client: Client, made: InMemorySpanExporter, collector: Collector) -> None:
    with trace.get_tracer("test").start_as_current_span("caller"):
        client.get({"a": (current,), "b": (current,), "sum": (add, "a", "b")}, ["sum"], chunk_size=1)
    (last,) = ended(made, "add")
    inputs = ended(made, "current", 2)
    assert {link.context.span_id for link in last.links} == {span.context.span_id for span in inputs if span.context}
    collector.of("scaler-worker", "current", 2)


def test_a_map_has_a_span_for_each_chunk_in_one_trace(
    client: Client, made: InMemorySpanExporter, collector: Collector
) -> None:
    assert client.map(abs, range(-100, 0), chunk_size=50) == [*range(100, 0, -1)]
    calls = ended(made, "abs", 2)
    assert [dict(call.attributes or {})["scaler.calls"] for call in calls] == [50, 50]
    runs = collector.of("scaler-worker", "abs", 2)
    assert len({run.trace_id for run in runs}) == 1
    assert {run.parent_id for run in runs} == {hexadecimal(call) for call in calls}


def test_spans_of_a_replaced_processor_are_sent(client: Client, collector: Collector) -> None:
    found = {client.submit(spoil).result()[1] for _ in range(3)}
    assert {span.span_id for span in collector.of("scaler-worker", "spoil", 3)} == found


def test_coroutines_run_inside_their_span(client: Client, collector: Collector) -> None:
    found = client.submit(in_coroutine).result()
    (run,) = collector.of("scaler-worker", "in_coroutine")
    assert found == (run.trace_id, run.span_id)


def test_arguments_may_have_any_name(client: Client) -> None:
    assert client.submit(join, function="a", name="b", self="c", text="d").result() == "a b c d"


def test_cancelled_task_ends_its_call(client: Client, made: InMemorySpanExporter, tmp_path: Path) -> None:
    future = client.submit(wait, tmp_path / "begun", tmp_path / "go")
    wait_for_file(tmp_path / "begun")
    assert future.cancel()
    (call,) = ended(made, "wait")
    assert dict(call.attributes or {})["scaler.outcome"] == "cancelled"


def test_calls_of_an_async_client_continue_the_current_trace(
    cluster: SchedulerClusterCombo, made: InMemorySpanExporter
) -> None:
    async def main() -> tuple[Any, ...]:
        async with AsyncClient(cluster.get_address()) as client:
            await client.trace()
            with trace.get_tracer("test").start_as_current_span("caller") as caller:
                trace_id = format(caller.get_span_context().trace_id, "032x")
                found = await client.submit(current)
                values = await client.get({"a": (current,)}, ["a"])
                return trace_id, found[0], values["a"][0], *(each[0] for each in await client.map(same, [1]))

    assert len({*asyncio.run(main())}) == 1
    ended(made, "current", 2)


class Faulty(SpanProcessor):
    def on_start(self, span: object, parent_context: object = None) -> None:
        raise RuntimeError(span, parent_context)


def set_faulty_provider() -> bool:
    """Return whether the program may still set a provider."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Faulty())
    trace.set_tracer_provider(provider)
    return trace.get_tracer_provider() is provider


@pytest.mark.usefixtures("provider")
def test_task_after_traced_tasks_may_set_a_provider_even_a_faulty_one(collector: Collector) -> None:
    with (
        SchedulerClusterCombo(n_workers=1, telemetry_endpoint=collector.address) as cluster,
        Client(cluster.get_address()) as client,
    ):
        client.trace()
        assert client.submit(divide, 1).result() == 1
        assert client.submit(set_faulty_provider).result()
        assert client.submit(divide, 2).result() == 0.5


def same(_number: int) -> tuple[str, str]:
    return current()


def test_invalid_ratio_is_refused(client: Client) -> None:
    with pytest.raises(UsageError, match="ratio is 2"):
        client.trace(ratio=2)
