"""Calls and clients of a key, without a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.requests import Request

from scaler.client.future import ScalerFuture
from scaler.config.load import model_of
from scaler.errors import ConfigError, LimitError
from scaler.extensions.http import keys
from scaler.extensions.http.command import http
from scaler.extensions.http.keys import ClientKey, HttpCall
from scaler.extensions.http.server import Api, _events
from scaler.extensions.http.settings import HttpConfig, function_of
from scaler.monitor.web.page import load_token
from scaler.net.access import Access


def job(identifier: str = "a") -> HttpCall:
    return HttpCall(identifier, "job.py", cast("ScalerFuture", Future()), [])


def client_key() -> ClientKey:
    return ClientKey("test", "", HttpConfig(scheduler_address="tcp://h:1"), Access())


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def test_output_in_single_bytes_becomes_few_pieces() -> None:
    async def main() -> None:
        call = job()
        for _ in range(20_000):
            call.add(is_stderr=False, data=b"x")
        assert len(call.output) < 10
        assert call.document["output"] == "x" * 20_000

    run(main)


def test_output_that_changes_streams_with_each_byte_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_PIECES", 100)

    async def main() -> None:
        call = job()
        for number in range(1000):
            call.add(is_stderr=bool(number % 2), data=b"x")
        assert (len(call.output), call.document["cut_characters"]) == (100, 900)

    run(main)


def test_character_in_two_parts_is_whole_and_a_part_alone_is_no_piece() -> None:
    async def main() -> None:
        call = job()
        call.add(is_stderr=False, data=b"\xc3")
        assert not call.document["output"]
        call.add(is_stderr=False, data=b"\xb6")
        assert call.document["output"] == "ö"

    run(main)


def test_output_of_ended_jobs_counts_as_kept_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_KEPT_BYTES", 25)

    async def main() -> None:
        key = client_key()
        for number in range(4):
            key.calls[f"{number}"] = call = job(f"{number}")
            call.add(is_stderr=False, data=b"x" * 10)
            call.ended_at = time.monotonic() + number
        await key.sweep()
        assert [*key.calls] == ["2", "3"]

    run(main)


def test_session_that_gets_a_call_while_another_closes_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        key, closing, may_end = client_key(), asyncio.Event(), asyncio.Event()
        closed: list[object] = []

        async def close(opening: asyncio.Task[Any]) -> None:
            closed.append(await opening)
            closing.set()
            await may_end.wait()

        monkeypatch.setattr(keys, "_close", close)
        for session in ("a", "b"):
            key.clients[session] = asyncio.create_task(asyncio.to_thread(cast("Any", str), session))
            await key.clients[session]
        sweeping = asyncio.create_task(key.sweep())
        await closing.wait()
        key.calls["b.1"] = job("b.1")
        may_end.set()
        await sweeping
        assert closed == ["a"]

    run(main)


def test_event_streams_of_a_key_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        key, call = client_key(), job()
        key.streams = keys.MAX_STREAMS

        async def find(_identifier: str) -> HttpCall:
            return call

        monkeypatch.setattr(key, "find", find)
        request = Request({"type": "http", "headers": [], "path_params": {"id": "a"}, "state": {"key": key}})
        with pytest.raises(LimitError, match="50 open event streams: close some"):
            await Api(HttpConfig(scheduler_address="tcp://h:1"), []).get_call_events(request, {})
        call.ended.set()
        assert [each async for each in _events(key, call, 0)]
        assert key.streams == keys.MAX_STREAMS

    run(main)


def test_token_of_the_web_page_makes_no_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    web, _ = load_token(None)
    for _ in range(2):
        assert http("scaler http", ["token"], {}) == 0
    first, second = capsys.readouterr().out.split()
    assert first == second != web


@pytest.mark.parametrize("name", ["m.\ud800:f", "m.x:os.system", "m.x:_f", "m.x:", "m.x", "m..x:f:g", "m.x y:f"])
def test_star_permits_no_malformed_or_private_name(name: str) -> None:
    config = HttpConfig(scheduler_address="tcp://h:1", allowed=("m.*:*",))
    assert function_of(config, "m.x:f") == ("m.x:f", False)
    assert function_of(config, name) is None


def test_name_for_a_star_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"'half=operator:\*' must be module:function"):
        HttpConfig(scheduler_address="tcp://h:1", allowed=("half=operator:*",))


@pytest.mark.parametrize("key", ["gui_address", "telemetry_endpoint"])
def test_keys_without_effect_are_unknown(key: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown key '{key}'"):
        model_of(HttpConfig, {"scheduler_address": "tcp://h:1", key: "h:1"})
