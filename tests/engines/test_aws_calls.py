"""Calls to AWS: equal causes have equal error texts, and no call exceeds the allowed rate."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
    SSOTokenLoadError,
)

from scaler.errors import UsageError
from scaler.worker_manager.aws import AwsSettings
from scaler.worker_manager.aws.calls import AwsClient, AwsError, aws_error, owner_tags, with_region


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def answered(code: str, message: str = "words", status: int = 400) -> AwsError:
    response: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return aws_error("ECS", "RunTask", ClientError(response, "RunTask"))


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        ("ThrottlingException", "throttled", "throttled by ECS RunTask (ThrottlingException)"),
        (
            "ExpiredTokenException",
            "credentials",
            (
                "AWS rejects these credentials (ExpiredTokenException): renew them, or check aws_profile and this "
                "machine's clock"
            ),
        ),
        ("AccessDeniedException", "denied", "not allowed to call ECS RunTask (AccessDeniedException): words"),
        ("ClusterNotFoundException", "refused", "ECS RunTask refused (ClusterNotFoundException): words"),
    ],
)
def test_service_errors_are_reported_with_their_code(code: str, kind: str, text: str) -> None:
    error = answered(code)
    assert (error.kind, str(error), error.code) == (kind, text, code)
    assert not error.is_uncertain


@pytest.mark.parametrize(
    "error",
    [
        ReadTimeoutError(endpoint_url="https://ecs.example/path"),
        ConnectTimeoutError(endpoint_url="https://ecs.example/"),
        ConnectionClosedError(endpoint_url="https://ecs.example/"),
        EndpointConnectionError(endpoint_url="https://ecs.example/", error="refused"),
    ],
)
def test_unanswered_call_may_have_taken_effect(error: BotoCoreError) -> None:
    text = (
        f"ECS RunTask: no answer at https://ecs.example ({type(error).__name__}): check the network, aws_region and "
        "aws_endpoint_url"
    )
    found = aws_error("ECS", "RunTask", error)
    assert (str(found), found.kind, found.is_uncertain) == (text, "unanswered", True)


def test_missing_credentials_error_says_what_to_set() -> None:
    assert str(aws_error("ECS", "RunTask", NoCredentialsError())) == (
        "no AWS credentials for ECS RunTask (NoCredentialsError: Unable to locate credentials): log in again, set "
        "aws_profile, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )
    sso = aws_error("ECS", "RunTask", SSOTokenLoadError(error_msg="no token"))
    assert sso.kind == "credentials"
    assert "log in again" in str(sso)


def test_invalid_profile_or_region_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(UsageError, match="aws_profile = 'missing'"):
        AwsClient(AwsSettings(aws_profile="missing"), "ecs")
    with pytest.raises(UsageError, match="aws_region = 'not a region'"):
        AwsClient(AwsSettings(aws_region="not a region"), "ecs")


CONFIG_FILE = """
[profile here]
region = eu-north-1
credential_process = {process}
"""


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Return a writer of the profile `here`, whose credentials come from a command and not the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    file = tmp_path / "config"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))

    def write(process: str) -> None:
        file.write_text(CONFIG_FILE.format(process=process))

    return write


def test_region_comes_from_settings_environment_or_profile_in_that_order(
    monkeypatch: pytest.MonkeyPatch, profile: Callable[[str], None]
) -> None:
    profile("true")
    assert with_region(AwsSettings(aws_profile="here")).aws_region == "eu-north-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert with_region(AwsSettings(aws_profile="here")).aws_region == "eu-west-1"
    monkeypatch.setenv("AWS_REGION", "eu-west-2")
    assert with_region(AwsSettings()).aws_region == "eu-west-2"
    assert with_region(AwsSettings(aws_region="ap-south-1")).aws_region == "ap-south-1"


@contextmanager
def mute_server() -> Iterator[tuple[str, list[socket.socket]]]:
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def take() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}", taken
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in taken:
                connection.close()


def test_silent_service_is_given_up_after_two_attempts() -> None:
    with mute_server() as (url, taken):
        client = AwsClient(AwsSettings(aws_endpoint_url=url), "ecs", read_timeout_seconds=0.05)
        with pytest.raises(AwsError, match="ECS ListTasks: no answer at http://127") as caught:
            client.call("ListTasks")
        assert caught.value.is_uncertain
        assert len(taken) == 2
        client.raw.close()


def test_credentials_renewed_in_their_file_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            is_new = "Credential=renewed/" in self.headers["Authorization"]
            body = b'{"taskArns": []}' if is_new else b'{"__type": "ExpiredTokenException", "message": "expired"}'
            self.send_response(200 if is_new else 400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    def write(key: str) -> None:
        path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")

    path = tmp_path / "credentials"
    write("expired")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        client = AwsClient(AwsSettings(aws_endpoint_url=f"http://127.0.0.1:{server.server_address[1]}"), "ecs")
        try:
            for _ in range(2):
                with pytest.raises(AwsError, match="AWS rejects these credentials"):
                    client.call("ListTasks")
            write("renewed")
            assert client.call("ListTasks")["taskArns"] == []
        finally:
            client.close()
            server.shutdown()
            thread.join()


def test_tag_values_have_only_characters_that_aws_accepts() -> None:
    tags = owner_tags("a*b{c}é" + "x" * 300, "tcp://10.0.0.1:8516")
    assert tags == {"scaler:manager": ("a_b_c__" + "x" * 300)[:256], "scaler:cluster": "tcp://10.0.0.1:8516"}
