"""The web server's connections: identity of peers, encryption, and limits of time, number, and bytes."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from scaler.errors import UsageError
from scaler.monitor.model import Model
from scaler.monitor.web import serving
from scaler.monitor.web.page import listen, load_token, page_of, tls_of
from scaler.monitor.web.server import WebApp
from scaler.monitor.web.serving import serve
from tests.unit.monitor.web_rig import PreparedMonitor, run, web_config

NOBODY = 65534


class Served:
    """A server in this process: its address, and the connections that a test opened."""

    def __init__(self, app: WebApp, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        self.app = app
        self.page = page_of(listening, is_encrypted=tls is not None)
        self.ends = listening.getsockname()
        self.opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def open(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.ends[:2])
        self.opened.append((reader, writer))
        writer.write(sent)
        await writer.drain()
        return reader, writer


@asynccontextmanager
async def served(tls: ssl.SSLContext | None = None) -> AsyncIterator[Served]:
    app = WebApp(PreparedMonitor(Model()), web_config())
    listening, stop = listen("127.0.0.1", 0), asyncio.Event()
    found = Served(app, listening, tls)
    serving_task = asyncio.ensure_future(serve(app, listening, stop, app.close, tls))
    try:
        yield found
    finally:
        for _, writer in found.opened:
            writer.close()
        stop.set()
        await serving_task


async def answer(where: Served, trust: ssl.SSLContext | bool = True) -> httpx.Response:
    async with httpx.AsyncClient(base_url=where.page, verify=trust) as client:
        return await client.get("/api/status")


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Wait until the server has closed a connection."""
    with suppress(ConnectionResetError):
        while await reader.read(65_536):
            pass
    return True


# -- limits


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n",
     b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\ntoken=",
     b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"],
    ids=["silent", "half a header", "half a form", "TLS"],
)  # fmt: skip
def test_waits_only_briefly_for_an_incomplete_request(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEADER_SECONDS", 0.2)

    async def scenario() -> None:
        async with served() as where:
            reader, _ = await where.open(sent)
            assert await is_closed(reader)
            assert (await answer(where)).status_code == 200

    run(scenario())


def test_connection_at_the_limit_replaces_one_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", 3)

    async def scenario() -> None:
        async with served() as where:
            silent = [await where.open() for _ in range(3)]
            assert (await answer(where)).status_code == 200
            assert await is_closed(silent[0][0])
            assert not silent[2][0].at_eof()

    run(scenario())


def test_connection_at_the_limit_replaces_an_event_stream_if_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", 2)

    async def scenario() -> None:
        async with served() as where:
            streams = [await where.open(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(2)]
            for reader, _ in streams:
                await reader.readuntil(b"snapshot")
            assert (await answer(where)).status_code == 200
            assert await is_closed(streams[0][0])

    run(scenario())


# -- peers' users

ASK = """
import os, socket, sys
"".encode("idna")  # loads modules that the other user may not read
os.setgroups([]); os.setuid(int(sys.argv[2]))
with socket.create_connection((sys.argv[3], int(sys.argv[1]))) as asking:
    asking.sendall(b"GET /api/status HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
    print(asking.makefile("rb").readline().decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_other_local_user_is_asked_for_the_token() -> None:
    async def scenario() -> list[bytes]:
        async with served() as where:
            answers = []
            for user in (os.geteuid(), NOBODY):
                arguments = (str(where.ends[1]), str(user), "127.0.0.1")
                asking = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", ASK, *arguments, stdout=subprocess.PIPE
                )
                answers.append((await asking.communicate())[0].strip())
            return answers

    assert run(scenario()) == [b"HTTP/1.1 200 OK", b"HTTP/1.1 401 Unauthorized"]


# -- the token's file


def test_token_is_created_once_and_readable_only_by_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    token, file = load_token(None)
    assert file == tmp_path / "scaler" / "web-token"
    assert (len(token), file.stat().st_mode & 0o777) == (43, 0o600)
    assert load_token(None) == (token, file)


@pytest.mark.parametrize(
    ("text", "mode", "problem"),
    [("short", 0o600, "must have at least 22"), ("é" * 30, 0o600, "must have at least 22"),
     ("a" * 30, 0o644, "chmod 600"), ("a" * 30, 0o640, "chmod 600"), (None, 0, "No such file")],
)  # fmt: skip
def test_rejects_a_readable_or_guessable_token(text: str | None, mode: int, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(UsageError, match=problem):
        load_token(str(file))


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return the files of a certificate for this machine and its key."""
    directory = tmp_path_factory.mktemp("tls")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    subprocess.run(
        [*command.split(), *names, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
    return str(certificate), str(key)


def test_page_is_encrypted_with_a_certificate(certificate: tuple[str, str]) -> None:
    tls = tls_of(web_config(web_certificate_file=certificate[0], web_key_file=certificate[1]))

    async def scenario() -> None:
        async with served(tls) as where:
            assert where.page.startswith("https://")
            assert (await answer(where, ssl.create_default_context(cafile=certificate[0]))).status_code == 200
            where.page = where.page.replace("https", "http")
            with pytest.raises(httpx.HTTPError):
                await answer(where)

    run(scenario())


def _without_certificate(certificate: str, key: str, directory: Path) -> tuple[str, str]:
    return str(directory / "none"), key


def _open_key(certificate: str, key: str, directory: Path) -> tuple[str, str]:
    copy = directory / "key"
    copy.write_text(Path(key).read_text())
    copy.chmod(0o640)
    return certificate, str(copy)


def _swapped(certificate: str, key: str, directory: Path) -> tuple[str, str]:
    copy = directory / "key"
    copy.write_text(Path(certificate).read_text())
    copy.chmod(0o600)
    return certificate, str(copy)


@pytest.mark.parametrize(
    ("given", "problem"),
    [(_without_certificate, "web_certificate_file .*No such file"), (_open_key, "chmod 600"),
     (_swapped, "web_certificate_file .*, web_key_file ")],
)  # fmt: skip
def test_invalid_tls_files_are_named(
    given: Callable[[str, str, Path], tuple[str, str]], problem: str, certificate: tuple[str, str], tmp_path: Path
) -> None:
    files = given(*certificate, tmp_path)
    with pytest.raises(UsageError, match=problem):
        tls_of(web_config(web_certificate_file=files[0], web_key_file=files[1]))
