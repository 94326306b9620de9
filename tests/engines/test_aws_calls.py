"""Calls to AWS: equal causes give equal error texts, and no call exceeds the allowed rate."""

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
    ParamValidationError,
    ReadTimeoutError,
    SSOTokenLoadError,
)

from scaler.errors import UsageError
from scaler.worker_manager.aws import AwsSettings
from scaler.worker_manager.aws.calls import (
    MAX_MESSAGE_CHARACTERS,
    AwsClient,
    AwsError,
    aws_error,
    owner_tags,
    steady,
    with_region,
)
from scaler.worker_manager.aws_raw_ecs.backend import TokenBucket


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
        ("ExpiredTokenException", "credentials", "AWS credentials have expired (ExpiredTokenException): renew them"),
        (
            "UnrecognizedClientException",
            "credentials",
            "AWS does not know these credentials (UnrecognizedClientException): check them and aws_profile",
        ),
        ("AccessDeniedException", "denied", "not allowed to call ECS RunTask (AccessDeniedException): words"),
        ("ClusterNotFoundException", "refused", "ECS RunTask refused (ClusterNotFoundException): words"),
    ],
)
def test_what_a_service_answers_is_said_with_its_code(code: str, kind: str, text: str) -> None:
    error = answered(code)
    assert (error.kind, str(error), error.code) == (kind, text, code)
    assert not error.is_uncertain


def test_what_fails_at_the_services_side_may_have_been_done() -> None:
    error = answered("ServerException", "Service Unavailable", 503)
    assert str(error) == "ECS RunTask fails at the service's side (ServerException, status 503)"
    assert error.is_uncertain


def test_equal_causes_are_spelled_alike_whatever_request_they_are_of() -> None:
    first = answered("AccessDeniedException", "no\n (request id 0d6f3a9c-7f7e-4ed4-9a2b-2f3f9e6b1c11) for sg-0abc123")
    second = answered("AccessDeniedException", "no\n (request id 2b1d5c0e-1111-4ed4-9a2b-2f3f9e6b1c12) for sg-0abc123")
    assert str(first) == str(second)
    assert "sg-0abc123" in str(first), "what the user has named stays"
    assert len(steady("long " * 1000)) == MAX_MESSAGE_CHARACTERS


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            ReadTimeoutError(endpoint_url="https://ecs.example/path"),
            "ECS RunTask: no answer at https://ecs.example within 10 s",
        ),
        (
            ConnectTimeoutError(endpoint_url="https://ecs.example/"),
            "ECS RunTask: no connection at https://ecs.example within 5 s",
        ),
        (
            ConnectionClosedError(endpoint_url="https://ecs.example/"),
            "ECS RunTask: the connection at https://ecs.example ended without an answer (ConnectionClosedError)",
        ),
        (
            EndpointConnectionError(endpoint_url="https://ecs.example/", error="refused"),
            "ECS RunTask: cannot connect at https://ecs.example: check the network, aws_region and aws_endpoint_url",
        ),
    ],
)
def test_a_call_without_an_answer_may_have_been_done(error: BotoCoreError, text: str) -> None:
    found = aws_error("ECS", "RunTask", error)
    assert (str(found), found.kind, found.is_uncertain) == (text, "unanswered", True)


def test_missing_credentials_say_what_to_give() -> None:
    assert str(aws_error("ECS", "RunTask", NoCredentialsError())) == (
        "no AWS credentials for ECS RunTask (NoCredentialsError): give aws_profile, set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or run where the machine has a role"
    )
    sso = aws_error("ECS", "RunTask", SSOTokenLoadError(error_msg="no token"))
    assert sso.kind == "credentials"
    assert str(sso).endswith("log in again")


def test_a_call_that_makes_no_sense_is_refused_before_it_is_sent() -> None:
    error = aws_error("ECS", "RunTask", ParamValidationError(report="count is no number"))
    assert (error.kind, error.is_uncertain) == ("refused", False)
    assert "count is no number" in str(error)


def test_a_profile_or_region_that_cannot_be_is_an_error_of_usage(monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Return what writes the profile `here`, whose credentials come from a command, and none from the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    file = tmp_path / "config"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))

    def write(process: str) -> None:
        file.write_text(CONFIG_FILE.format(process=process))

    return write


def test_the_region_is_that_of_the_settings_else_of_the_environment_else_of_the_profile(
    monkeypatch: pytest.MonkeyPatch, profile: Callable[[str], None]
) -> None:
    profile("true")
    assert with_region(AwsSettings(aws_profile="here")).aws_region == "eu-north-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert with_region(AwsSettings(aws_profile="here")).aws_region == "eu-west-1"
    monkeypatch.setenv("AWS_REGION", "eu-west-2")
    assert with_region(AwsSettings()).aws_region == "eu-west-2"
    assert with_region(AwsSettings(aws_region="ap-south-1")).aws_region == "ap-south-1"


def test_without_a_region_the_error_says_where_it_was_looked_for(profile: Callable[[str], None]) -> None:
    profile("true")
    with pytest.raises(UsageError, match=r"aws_region is missing, and neither AWS_REGION, .* such as eu-central-1"):
        AwsClient(AwsSettings(), "ecs")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            '{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": "2020-01-01T00:00:00Z"}',
            "RuntimeError: Credentials were refreshed, but the refreshed credentials are still expired",
        ),
        ("please log in", "JSONDecodeError: "),
        (None, "FileNotFoundError: "),
    ],
)
def test_bad_answers_of_a_credential_process_are_reasons_and_the_next_call_asks_it_again(
    profile: Callable[[str], None], tmp_path: Path, answer: str | None, text: str
) -> None:
    reply = tmp_path / "reply"
    profile(f"cat {reply}" if answer is not None else "no-such-program-at-all")
    reply.write_text(answer or "")
    client = AwsClient(AwsSettings(aws_profile="here", aws_endpoint_url="http://127.0.0.1:1"), "ecs")
    with pytest.raises(AwsError) as refused:
        client.call("ListTasks")
    assert refused.value.kind == "credentials"
    assert str(refused.value).startswith(f"AWS credentials cannot be renewed ({text}")
    reply.write_text('{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b"}')
    profile(f"cat {reply}")
    with pytest.raises(AwsError, match=r"cannot connect at http://127\.0\.0\.1:1"):
        client.call("ListTasks")


@contextmanager
def mute_server() -> Iterator[tuple[str, list[socket.socket]]]:
    """Takes connections and says nothing."""
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


def test_a_service_that_says_nothing_is_given_up_after_two_attempts() -> None:
    with mute_server() as (url, taken):
        client = AwsClient(AwsSettings(aws_endpoint_url=url), "ecs", read_timeout_seconds=0.05)
        with pytest.raises(AwsError, match="ECS ListTasks: no answer at http://127") as caught:
            client.call("ListTasks")
        assert caught.value.is_uncertain
        assert len(taken) == 2
        client.raw.close()


def test_credentials_that_were_renewed_in_their_file_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
                with pytest.raises(AwsError, match="AWS credentials have expired"):
                    client.call("ListTasks")
            write("renewed")
            assert client.call("ListTasks")["taskArns"] == []
        finally:
            client.close()
            server.shutdown()
            thread.join()


def test_a_bucket_lets_a_burst_through_and_then_so_many_a_second() -> None:
    bucket = TokenBucket(burst=100, per_second=20, at=0.0)
    assert [bucket.take(10, 0.0) for _ in range(10)] == [0.0] * 10
    assert bucket.take(10, 0.0) == 0.5
    assert bucket.take(10, 0.0) == 1.0
    assert bucket.take(10, 10.0) == 0.0
    for _ in range(9):
        assert bucket.take(10, 1000.0) == 0.0
    assert bucket.take(11, 1000.0) == pytest.approx(0.05), "time that passes fills it to the burst and no further"


def test_values_of_tags_have_no_characters_that_aws_refuses() -> None:
    tags = owner_tags("a*b{c}é" + "x" * 300, "tcp://10.0.0.1:8516")
    assert tags == {"scaler:manager": ("a_b_c__" + "x" * 300)[:256], "scaler:cluster": "tcp://10.0.0.1:8516"}
