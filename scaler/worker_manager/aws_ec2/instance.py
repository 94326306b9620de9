"""Runs a worker on an instance, started by its user data, and drains the worker on a spot interruption notice."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from urllib.error import HTTPError

from scaler.config.worker import WORKER_CONFIG_VARIABLE, WorkerConfig
from scaler.host import usable_cpus
from scaler.worker.credential import credential_text, inherited_credential, take_credential

METADATA_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"  # boto3's variable for the address of the metadata service
METADATA = "http://169.254.169.254"
ANSWER_SECONDS = 2.0
TOKEN_SECONDS = 60
NOTICE_SECONDS = 5.0  # polling interval for spot notices, as recommended in EC2's guide
CREDENTIAL_ATTEMPTS = 20
CREDENTIAL_PAUSE_SECONDS = 3.0  # the role of a new instance may not have propagated yet
INSTANCE_ID_VARIABLE = "SCALER_EC2_INSTANCE_ID"


class Metadata:
    """This instance's metadata (IMDSv2). Raises OSError if there is no answer."""

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> str | None:
        token = self._ask("PUT", "api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)})
        try:
            return self._ask("GET", f"meta-data/{path}", {"X-aws-ec2-metadata-token": token})
        except HTTPError as error:
            if error.code != 404:
                raise
            return None

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> str:
        request = urllib.request.Request(f"{self._address}/latest/{path}", method=method, headers=headers)  # noqa: S310
        try:
            with self._opener.open(request, timeout=ANSWER_SECONDS) as answer:
                text: str = answer.read().decode()
        except HTTPError as error:
            error.close()
            raise
        return text


def notice(metadata: Metadata) -> str:
    """Return how and when EC2 will reclaim this instance, or "" if there is no notice or no answer."""
    try:
        found = metadata.get("spot/instance-action")
        document = json.loads(found) if found else {}
    except (OSError, ValueError):
        return ""
    return f"{document.get('action', 'terminate')} at {document.get('time', 'once')}" if document else ""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="instance")
    parser.add_argument("--slots", type=int, default=0)
    parser.add_argument("--region", default="")
    parser.add_argument("--credential", default="")
    given = parser.parse_args(arguments)
    take_credential()  # a credential from the machine's environment
    secret = credential_text() or (_credential(given.credential, given.region) if given.credential else "")
    metadata = Metadata(os.environ.get(METADATA_VARIABLE) or METADATA)
    slots = given.slots or usable_cpus()
    document = replace(WorkerConfig.from_environment(), slots=slots).to_json()
    environment = {
        **os.environ,
        WORKER_CONFIG_VARIABLE: document,
        INSTANCE_ID_VARIABLE: metadata.get("instance-id") or "",
    }
    command = [sys.executable, "-P", "-m", "scaler.worker"]
    with inherited_credential(secret) as (variables, descriptors):
        worker = subprocess.Popen(command, env=environment | variables, pass_fds=descriptors)
    signal.signal(signal.SIGTERM, lambda *_: worker.terminate())
    while True:
        try:
            return worker.wait(NOTICE_SECONDS)
        except subprocess.TimeoutExpired:
            if text := notice(metadata):
                sys.stderr.write(f"EC2 reclaims this spot instance ({text}): the worker drains\n")
                worker.terminate()
                return worker.wait()


def _credential(name: str, region: str) -> str:
    import boto3  # noqa: PLC0415 (of clusters with keys)
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    for attempt in range(1, CREDENTIAL_ATTEMPTS + 1):
        try:
            client = boto3.client("ssm", region_name=region)
            return str(client.get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"])
        except (BotoCoreError, ClientError) as error:
            if attempt == CREDENTIAL_ATTEMPTS:
                raise SystemExit(f"cannot read the credential {name} from the Parameter Store: {error}") from None
            time.sleep(CREDENTIAL_PAUSE_SECONDS)
    raise AssertionError


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
