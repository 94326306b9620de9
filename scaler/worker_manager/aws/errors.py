"""What AWS and botocore complain about, in words that are spelled alike whenever the cause is the same."""

from __future__ import annotations

import re
from typing import Literal

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
    SSLError,
    SSOError,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as NoConnectionError

from scaler.worker_manager.backend import BackendError

MAX_MESSAGE_CHARACTERS = 300
CONNECT_TIMEOUT_SECONDS = 5
READ_TIMEOUT_SECONDS = 10

Kind = Literal["throttled", "credentials", "denied", "unanswered", "broken", "refused"]
"""unanswered: no reply came. broken: the service says that it failed. refused: it does not do this."""

THROTTLES = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
BAD_CREDENTIALS = frozenset(
    {
        "AuthFailure",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "InvalidToken",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
SKEWED = frozenset({"RequestTimeTooSkewed", "RequestInTheFuture"})
DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "UnauthorizedException"})

_IDS = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{32,}\b", re.IGNORECASE)
_HOST = re.compile(r"https?://[^/]+")


class AwsError(BackendError):
    """A call failed. code: the service's own name of the error, empty when it did not answer.

    is_uncertain: it may have been done all the same.
    """

    def __init__(self, text: str, kind: Kind, code: str = "", message: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.code = code
        self.message = message
        """The service's own words."""

    @property
    def is_uncertain(self) -> bool:
        return self.kind in ("unanswered", "broken")


def aws_error(service: str, operation: str, error: BotoCoreError | ClientError) -> AwsError:
    """Return an error of boto3 or botocore as ours. service: as people call it, such as ECS."""
    call = f"{service} {operation}"
    if isinstance(error, ClientError):
        return _answered(call, error)
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return AwsError(
            f"no AWS credentials for {call} ({type(error).__name__}): give aws_profile, set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or run where the machine has a role",
            "credentials",
        )
    if isinstance(error, CredentialRetrievalError | TokenRetrievalError | SSOError):
        text = f"AWS credentials cannot be renewed ({type(error).__name__}: {steady(str(error))}): log in again"
        return AwsError(text, "credentials")
    if isinstance(error, HTTPClientError | NoConnectionError | IncompleteReadError):
        return AwsError(f"{call}: {_silence(error)}", "unanswered")
    return AwsError(f"{call} cannot be asked ({type(error).__name__}): {steady(str(error))}", "refused")


def steady(message: str) -> str:
    """Return a message without what differs from time to time: ids of requests and tasks."""
    text = " ".join(_IDS.sub("...", message).split())
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else text[: MAX_MESSAGE_CHARACTERS - 3] + "..."


def _answered(call: str, error: ClientError) -> AwsError:
    fault = error.response.get("Error", {})
    code = str(fault.get("Code", "")) or "unknown error"
    message = str(fault.get("Message", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)
    kind: Kind
    if code in THROTTLES:
        kind, text = "throttled", f"throttled by {call} ({code})"
    elif code in EXPIRED:
        kind, text = "credentials", f"AWS credentials have expired ({code}): renew them"
    elif code in BAD_CREDENTIALS:
        kind, text = "credentials", f"AWS does not know these credentials ({code}): check them and aws_profile"
    elif code in SKEWED:
        kind, text = "credentials", f"AWS refuses the time of this machine ({code}): set its clock"
    elif code in DENIED:
        kind, text = "denied", f"not allowed to call {call} ({code}): {steady(message)}"
    elif status >= 500:
        kind, text = "broken", f"{call} fails at the service's side ({code}, status {status})"
    else:
        kind, text = "refused", f"{call} refused ({code}): {steady(message)}"
    return AwsError(text, kind, code, message)


def _silence(error: BotoCoreError) -> str:
    host = _HOST.match(str(error.kwargs.get("endpoint_url", "")))
    where = f" at {host.group()}" if host else ""
    if isinstance(error, ConnectTimeoutError):
        return f"no connection{where} within {CONNECT_TIMEOUT_SECONDS} s"
    if isinstance(error, ReadTimeoutError):
        return f"no answer{where} within {READ_TIMEOUT_SECONDS} s"
    if isinstance(error, EndpointConnectionError):
        return f"cannot connect{where}: check the network, aws_region and aws_endpoint_url"
    if isinstance(error, SSLError):
        return f"no secure connection{where}: {steady(str(error))}"
    return f"the connection{where} ended without an answer ({type(error).__name__})"
