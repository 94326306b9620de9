"""Access to the web server, and the security headers in its answers."""

from __future__ import annotations

import socket

import httpx
import pytest

from tests.unit.monitor.web_rig import ask, web_config

PATHS = ["/", "/api/status", "/metrics", "/api/nothing", "/events"]


@pytest.mark.parametrize(
    ("path", "method"), [*[(path, "POST") for path in PATHS[:3]], ("/api/status", "DELETE"), ("/api/status", "BREW")]
)
def test_only_get_and_head_are_answered(path: str, method: str) -> None:
    reply = ask(path, method=method)
    assert reply.status_code == 405
    assert reply.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    ("host", "code"),
    [
        *[(host, 200) for host in (
            "localhost", "localhost:50001", "LOCALHOST.:1", "127.0.0.1", "127.0.0.1:80", "127.1.2.3:50001",
            "[::1]:50001", "[0:0::1]",
        )],
        *[(host, 401) for host in (socket.gethostname(), "proxy.example:443", "web.example")],
    ],
)  # fmt: skip
def test_own_host_is_accepted_and_requires_login_beyond_loopback(host: str, code: int) -> None:
    settings = web_config(allowed_hosts=("Proxy.example", "web.example"))
    assert ask("/api/status", headers={"host": host}, settings=settings).status_code == code


@pytest.mark.parametrize(
    ("path", "host"),
    [*[(path, "evil.example:50001") for path in PATHS[:3]],
     *[("/api/status", host) for host in (
         "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "[::2]", "localhost:50001@evil.example",
         "local host", "localhost:x", "localhost/", "[::1", "user@localhost",
     )]],
)  # fmt: skip
def test_rejects_any_other_host(path: str, host: str) -> None:
    reply = ask(path, headers={"host": host})
    assert reply.status_code == 403
    assert "allowed_hosts" in reply.json()["error"]


def test_request_has_exactly_one_host() -> None:
    two = httpx.Headers([("host", "evil.example"), ("host", "localhost")])
    for path in PATHS:
        assert ask(path, headers=two).status_code == 403


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        ("http://localhost:50001", 200),
        ("http://localhost:50002", 403),
        ("http://localhost", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_rejects_requests_from_other_sites(origin: str, code: int) -> None:
    for path in ("/api/status", "/metrics"):
        assert ask(path, headers={"host": "localhost:50001", "origin": origin}).status_code == code


@pytest.mark.parametrize(
    ("path", "method", "host"),
    [*[(path, "HEAD", "localhost") for path in PATHS], ("/metrics", "HEAD", "evil"), ("/", "POST", "localhost")],
)
def test_every_answer_has_security_headers(path: str, method: str, host: str) -> None:
    headers = ask(path, method=method, headers={"host": host}).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert not [name for name in headers if name.startswith("access-control")]
    assert headers["cache-control"] in ("no-store", "no-cache")


@pytest.mark.parametrize(
    "path",
    ["/../app.py", "/..%2fapp.py", "/%2e%2e/app.py", "/%2e%2e%2fapp.py", "//etc/passwd", "/..\\app.py", "/%00",
     "/static/../../app.py", "/" + "x" * 5000],
)  # fmt: skip
def test_serves_no_files_next_to_the_page(path: str) -> None:
    reply = ask(path)
    assert reply.status_code == 404, reply.text
    assert "error" in reply.json()
