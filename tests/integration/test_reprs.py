"""What a client, a future and a combo say of themselves, in a shell and in a notebook."""

from __future__ import annotations

import time

import pytest

from scaler import Client, SchedulerClusterCombo

SECONDS = 20.0


def fail(text: str) -> None:
    raise ValueError(text)


@pytest.fixture
def client(cluster: SchedulerClusterCombo) -> Client:
    return Client(cluster.get_address(), timeout_seconds=SECONDS, name="<b>me</b>")


def test_a_future_shows_its_function_and_its_state(client: Client) -> None:
    with client:
        future = client.submit(abs, -1)
        assert future.result(SECONDS) == 1
        assert repr(future) == f"<ScalerFuture {future.task_id.hex()} of abs finished>"
        shown = future._repr_html_()
        for text in (future.task_id.hex(), "abs", "finished", "int", " s<"):
            assert text in shown
        profiled = client.submit(abs, -1, profiling=True)
        profiled.result(SECONDS)
        assert "peak memory" in profiled._repr_html_()


def test_a_failed_future_shows_its_error_as_text_and_not_all_of_it(client: Client) -> None:
    with client:
        future = client.submit_verbose(fail, ("<img onerror=x>" + "long" * 100_000,), name="<script>" + "n" * 200)
        assert isinstance(future.exception(SECONDS), ValueError)
        shown = future._repr_html_()
        assert "ValueError: &lt;img onerror=x&gt;" in shown
        assert "<script>" not in shown
        assert len(shown) < 10_000
        assert len(repr(future)) < 250
        assert repr(future).endswith(" raised ValueError>")


def test_a_pending_future_shows_itself_without_waiting(client: Client) -> None:
    with client:
        slow = client.submit(time.sleep, 60)
        assert "sleep" in slow._repr_html_()
        assert slow.cancel()
        assert "cancelled" in slow._repr_html_()


def test_a_client_shows_where_it_is_connected_and_what_it_waits_for(
    cluster: SchedulerClusterCombo, client: Client
) -> None:
    with client:
        assert repr(client) == f"<Client {client.identity.hex()} of {cluster.get_address()}, connected>"
        waiting = [client.submit(time.sleep, 60) for _ in range(3)]
        shown = client._repr_html_()
        for text in (cluster.get_address(), client.identity.hex(), "&lt;b&gt;me&lt;/b&gt;", "connected", ">3<"):
            assert text in shown
        assert all(future.cancel() for future in waiting)
    assert repr(client).endswith(", disconnected>")
    assert "disconnected" in client._repr_html_()


def test_a_combo_shows_its_addresses_and_that_it_has_stopped() -> None:
    with SchedulerClusterCombo(n_workers=1) as combo:
        assert repr(combo) == f"<SchedulerClusterCombo {combo.get_address()}, 1 worker, runs>"
        shown = combo._repr_html_()
        for address in (combo.get_address(), combo.get_monitor_address(), combo.get_object_storage_address()):
            assert address in shown
        assert f"scaler_top {combo.get_monitor_address()}" in shown
    assert repr(combo).endswith(", stopped>")
    assert "scaler_top" not in combo._repr_html_()
