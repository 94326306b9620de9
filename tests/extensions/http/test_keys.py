"""Calls and clients of a key, without a cluster."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.requests import Request

from scaler.client.future import ScalerFuture
from scaler.config.load import model_of
from scaler.errors import ConfigError, LimitError
from scaler.extensions.http import keys, server
from scaler.extensions.http.command import http
from scaler.extensions.http.keys import ClientKey, HttpCall
from scaler.extensions.http.server import Api, _events, _refusal, _sweep
from scaler.extensions.http.settings import HttpConfig, permission_of
from scaler.extensions.streams.asynchronous import AsyncStream
from scaler.monitor.web.page import load_token
from scaler.net.access import Access


def job(identifier: str = "a") -> HttpCall:
    return HttpCall(identifier, "job.py", cast("ScalerFuture", Future()), cast("AsyncStream", nothing()))


async def nothing() -> AsyncIterator[tuple[bool, bytes]]:
    return
    yield


def output_of(call: HttpCall) -> tuple[str, int]:
    document = json.loads(call.answer)
    return document["output"], document["cut_characters"]


def client_key() -> ClientKey:
    return ClientKey("test", "", HttpConfig(scheduler_address="tcp://h:1"), Access())


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def test_output_keeps_its_last_half_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_OUTPUT", 10)

    async def main() -> None:
        call = job()
        for digit in "0123456789":
            call.add(digit.encode())
        assert output_of(call) == ("0123456789", 0)
        call.add(b"a")
        assert output_of(call) == ("6789a", 6)
        assert [call.output(position) for position in (0, 7, 11, 99)] == ["6789a", "789a", "", ""]

    run(main)


def test_event_stream_has_all_output_of_a_fast_job() -> None:
    async def pieces() -> AsyncIterator[tuple[bool, bytes]]:
        for number in range(200):
            yield False, b"%d" % (number % 10) * 64 * 1024

    async def main() -> None:
        call = HttpCall("a", "job.py", cast("ScalerFuture", Future()), cast("AsyncStream", pieces()))
        received, size = "", 200 * 64 * 1024
        async for event in _events(client_key(), call, 0):
            for line in event.decode().splitlines():
                document = json.loads(line[6:]) if line.startswith("data: ") else {}
                received += document.get("text", "")
            if len(received) == size:
                break
        assert received == "".join(str(number % 10) * 64 * 1024 for number in range(200))
        call.following.cancel()

    run(main)


def test_character_split_between_reads_arrives_whole() -> None:
    async def main() -> None:
        call = job()
        call.add(b"\xc3")
        assert output_of(call) == ("", 0)
        call.add(b"\xb6")
        assert output_of(call) == ("ö", 0)

    run(main)


def test_oldest_answers_are_dropped_beyond_the_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_KEPT_BYTES", 25)

    async def main() -> None:
        key = client_key()
        for number in range(4):
            key.calls[f"{number}"] = call = job(f"{number}")
            call.ended_at, call.size = time.monotonic() + number, 10
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
        key.streams = server.MAX_STREAMS

        async def find(_identifier: str) -> HttpCall:
            return call

        monkeypatch.setattr(key, "find", find)
        request = Request({"type": "http", "headers": [], "path_params": {"id": "a"}, "state": {"key": key}})
        with pytest.raises(LimitError, match="50 open event streams: close some"):
            await Api(HttpConfig(scheduler_address="tcp://h:1"), []).get_call_events(request)
        call.following.cancel()
        assert [each async for each in _events(key, call, 0)]
        assert key.streams == server.MAX_STREAMS

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
    assert permission_of(config, "m.x:f") is False
    assert permission_of(config, name) is None


def test_malformed_entry_of_allowed_is_an_error() -> None:
    with pytest.raises(ValueError, match="'half=operator:truediv' must be module:function"):
        HttpConfig(scheduler_address="tcp://h:1", allowed=("half=operator:truediv",))


def test_sessions_are_still_closed_after_one_fails_to_close(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "SWEEP_SECONDS", 0.001)

    async def main() -> None:
        swept = asyncio.Event()
        key = client_key()

        async def sweep() -> None:
            if "cannot close" in caplog.text:
                swept.set()
            raise OSError("broken")

        monkeypatch.setattr(key, "sweep", sweep)
        sweeping = asyncio.create_task(_sweep([key]))
        await asyncio.wait_for(swept.wait(), 10)
        sweeping.cancel()

    run(main)
    assert "cannot close a session of the key test" in caplog.text


def test_bug_in_the_server_gives_500_that_says_where_to_look() -> None:
    answer = asyncio.run(_refusal(Request({"type": "http"}), KeyError("x")))
    assert answer.status_code == 500
    assert json.loads(bytes(answer.body))["error"].startswith(
        "KeyError in this server: please report it with the lines"
    )


@pytest.mark.parametrize("key", ["gui_address", "telemetry_endpoint"])
def test_settings_without_effect_are_unknown_keys(key: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown key '{key}'"):
        model_of(HttpConfig, {"scheduler_address": "tcp://h:1", key: "h:1"})
