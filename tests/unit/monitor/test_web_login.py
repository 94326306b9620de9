"""Access without a token, login with a token, and rejection of a wrong one."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from scaler.monitor.model import Model
from scaler.monitor.web import security as login_module
from scaler.monitor.web.security import is_same_user
from scaler.monitor.web.server import WebApp
from tests.unit.monitor.web_rig import PreparedMonitor, ask, of_connection, run, web_config

TOKEN = "a-token-of-this-test-1"
READ = ["/", "/api/status", "/metrics", "/events", "/app.js", "/schema.js", "/api/openapi.json"]


@asynccontextmanager
async def browser(
    *, is_same_user: bool = False, base: str = "http://10.0.0.1:50001", **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client with cookies, at a server that is public by default."""
    app = WebApp(PreparedMonitor(Model()), web_config(web_host="0.0.0.0", allowed_hosts=("10.0.0.1",)), TOKEN)
    transport = httpx.ASGITransport(of_connection(app, is_same_user=is_same_user), client=("10.9.8.7", 4))
    async with httpx.AsyncClient(transport=transport, base_url=base) as client:
        yield client


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time of the login, as a list of one number of seconds."""
    now = [1_000_000.0]
    monkeypatch.setattr(login_module, "time", SimpleNamespace(time=lambda: now[0], monotonic=lambda: now[0]))
    return now


@pytest.mark.parametrize("is_same_user", [True, False])
@pytest.mark.parametrize("base", ["http://10.0.0.1:50001", "http://127.0.0.1:50001"])
def test_nothing_is_shown_beyond_loopback_without_a_token(base: str, is_same_user: bool) -> None:
    async def scenario() -> None:
        async with browser(is_same_user=is_same_user, base=base) as client:
            for path in READ:
                answer = await client.get(path)
                assert answer.status_code == 401
                assert ("<form" in answer.text) is (path == "/")

    run(scenario())


@pytest.mark.parametrize(("server", "host"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")])
def test_kernel_tells_the_user_of_a_connection(server: str, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with (
        socket.create_server((server, 0), family=family, dualstack_ipv6=server == "::") as listening,
        socket.create_connection((host, listening.getsockname()[1])) as client,
        listening.accept()[0] as accepted,
    ):
        ends = accepted.getpeername()[:2], accepted.getsockname()[:2]
        assert is_same_user(*ends)
        monkeypatch.setattr("os.geteuid", lambda: 12345)
        assert not is_same_user(*ends)
        monkeypatch.undo()
        client.close()
        assert not is_same_user((ends[0][0], 1), ends[1])


def test_only_other_users_need_a_token_on_loopback() -> None:
    assert ask("/metrics", is_same_user=True).status_code == 200
    assert ask("/metrics", is_same_user=False).status_code == 401


def test_token_link_sets_a_cookie_hidden_from_scripts_and_other_sites() -> None:
    async def scenario() -> None:
        async with browser() as client:
            answer = await client.get(f"/?token={TOKEN}")
            assert answer.status_code == 200
            assert TOKEN not in answer.text + str(answer.headers)
            attributes = answer.headers["set-cookie"].lower().split("; ")
            assert {"httponly", "samesite=strict", "path=/"} <= set(attributes)
            assert "secure" not in attributes
            assert '<meta http-equiv="refresh" content="0; url=./">' in answer.text
            assert (await client.get("/api/status")).status_code == 200
        async with browser(base="https://10.0.0.1:50001") as client:
            assert "; secure" in (await client.get(f"/?token={TOKEN}")).headers["set-cookie"].lower()

    run(scenario())


def test_form_logs_in_without_a_script() -> None:
    async def scenario() -> None:
        async with browser() as client:
            form = (await client.get("/")).text
            assert '<form method="post" action="login">' in form
            assert "<script" not in form
            answer = await client.post(
                "/login", data={"token": f" {TOKEN}\n"}, headers={"origin": str(client.base_url)}
            )
            assert answer.status_code == 200
            assert (await client.get("/")).status_code == 200

    run(scenario())


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_form_of_another_site_does_not_log_in(origin: str) -> None:
    async def scenario() -> None:
        async with browser() as client:
            answer = await client.post("/login", data={"token": TOKEN}, headers={"origin": origin})
            assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)

    run(scenario())


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], TOKEN + "1", TOKEN.upper(), "\ud800é", "<script>" * 2000])
def test_wrong_token_error_has_a_remedy(wrong: str) -> None:
    async def scenario() -> None:
        async with browser() as client:
            answer = await client.post("/login", data={"token": wrong.encode("utf-8", "replace")})
            assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
            assert "This token is wrong" in answer.text
            assert "<form" in answer.text
            assert "<script>" not in answer.text

    run(scenario())


def test_programs_send_a_bearer_token() -> None:
    async def scenario() -> None:
        async with browser() as client:
            for value, code in (
                (f"Bearer {TOKEN}", 200),
                (f"bearer  {TOKEN}", 200),
                ("Bearer x", 401),
                ("Basic x", 401),
            ):
                answer = await client.get("/metrics", headers={"authorization": value})
                assert answer.status_code == code, value
            assert answer.headers["www-authenticate"] == "Bearer"

    run(scenario())


@pytest.mark.parametrize(
    "change",
    [lambda text: "", lambda text: text[:-1], lambda text: "9" + text, lambda text: text.partition("-")[0],
     lambda text: text.replace("-", "--"), lambda text: "x-" + text.partition("-")[2]],
)  # fmt: skip
def test_rejects_a_forged_cookie(change: Any) -> None:
    async def scenario() -> None:
        async with browser() as client:
            await client.get(f"/?token={TOKEN}")
            ((name, value),) = client.cookies.items()
            client.cookies.clear()
            assert (await client.get("/api/status", headers={"cookie": f"{name}={value}"})).status_code == 200
            forged = await client.get("/api/status", headers={"cookie": f"{name}={change(value)}"})
            assert forged.status_code == 401

    run(scenario())


def test_login_session_expires(clock: list[float]) -> None:
    async def scenario() -> None:
        async with browser() as client:
            await client.get(f"/?token={TOKEN}")
            ((name, value),) = client.cookies.items()
            cookie = {"cookie": f"{name}={value}"}
            clock[0] += login_module.SESSION_SECONDS - 1
            assert (await client.get("/api/status", headers=cookie)).status_code == 200
            clock[0] += 2
            assert (await client.get("/api/status", headers=cookie)).status_code == 401

    run(scenario())


def test_wrong_tokens_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with browser() as client:
            codes = [(await client.get("/?token=wrong")).status_code for _ in range(8)]
            assert codes == [401] * 8
            assert (await client.get(f"/?token={TOKEN}")).status_code == 200
            assert (await client.get("/metrics", headers={"authorization": "Bearer wrong"})).status_code == 200, (
                "a session"
            )

    run(scenario())
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("scaler.")]
    assert lines == ["wrong web page token from 10.9.8.7"]
