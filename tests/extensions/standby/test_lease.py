"""A lease on an emulated S3, and the take-over without a command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ReadTimeoutError

from scaler import Client
from scaler.errors import UsageError
from scaler.extensions.standby.lease import Lease, LeaseRecord
from scaler.extensions.standby.term import own_id
from tests.engines.moto_rig import moto_server
from tests.extensions.standby.pair import kill, noted, running, until_said
from tests.waiting import until

URL = "s3://leases/cluster"
ACCOUNT = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Yield the variables of processes that use the emulated S3, which this process has too."""
    with moto_server() as url:
        variables = {**ACCOUNT, "AWS_ENDPOINT_URL": url}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        s3 = boto3.session.Session().client("s3")
        s3.create_bucket(Bucket="leases")
        s3.delete_object(Bucket="leases", Key="cluster")  # moto's state outlives its server
        yield variables
        s3.close()


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(main())


def close(*leases: Lease) -> None:
    for lease in leases:
        lease.close()


def test_lease_has_one_holder_and_a_replaced_holder_never_regains_it(store: dict[str, str]) -> None:
    async def main() -> None:
        first, second = Lease(URL, "tcp://a:1", "a"), Lease(URL, "tcp://b:1", "b")
        assert await first.renew(1) is None
        assert await first.renew(1, lambda: "tcp://b:1") is None
        assert "tcp://a:1 has the lease" in (await second.renew(1) or "")
        found = await second.read()
        assert (found and found.standby, second.is_lost) == ("tcp://b:1", True)
        assert await first.renew(1) is None  # the scheduler leaves the standby behind
        assert not await second.write(2, "")
        await second.read()
        assert await second.write(2, "")
        assert "tcp://b:1 has the lease" in (await first.renew(1) or "")
        assert first.is_lost
        close(first, second)

    run(main)


def test_concurrent_takers_get_one_lease(store: dict[str, str]) -> None:
    async def main() -> None:
        leases = [Lease(URL, f"tcp://{name}:1", name) for name in "abcd"]
        assert sorted(await asyncio.gather(*(lease.write(1, "") for lease in leases))) == [False] * 3 + [True]
        close(*leases)

    run(main)


def test_unreachable_store_and_malformed_url_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**ACCOUNT, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)

    async def main() -> None:
        lease = Lease(URL, "tcp://a:1", "a")
        assert "cannot be renewed" in (await lease.renew(1) or "")
        assert not lease.is_lost
        close(lease)
        monkeypatch.setenv("AWS_ENDPOINT_URL", "no url")
        lease = Lease(URL, "tcp://a:1", "a")
        assert "cannot be renewed: Invalid endpoint: no url" in (await lease.renew(1) or "")
        close(lease)
        for url in ("leases/cluster", "s3://leases", "s3:///cluster"):
            with pytest.raises(UsageError, match="s3://bucket/key"):
                Lease(url, "tcp://a:1", "a")

    run(main)


def test_truncated_answers_and_answers_without_a_lease_do_not_stop_the_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bytes:
        raise ReadTimeoutError(endpoint_url=URL)

    async def main() -> None:
        for read, why in ((broken, "timeout"), (lambda: b"{}", "is not a lease: name another object in standby_lease")):
            answer = {"ETag": "1", "Body": SimpleNamespace(read=read)}
            monkeypatch.setattr(Lease, "_s3", SimpleNamespace(get_object=lambda answer=answer, **_: answer))
            lease = Lease(URL, "tcp://a:1", "a")
            assert why in (await lease.renew(1) or "")
            assert not lease.tag, "the object is not replaced"

    run(main)


@pytest.mark.parametrize(("owner", "is_lost"), [("a", False), ("b", True)])
def test_scheduler_keeps_its_lease_when_its_address_changes(
    owner: str, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps(LeaseRecord(1, "tcp://a:1", "a", "", "1")._asdict()).encode()
    store = SimpleNamespace(
        get_object=lambda **_: {"ETag": "1", "Body": SimpleNamespace(read=lambda: body)},
        put_object=lambda **_: {"ETag": "2"},
    )

    async def main() -> None:
        monkeypatch.setattr(Lease, "_s3", store)
        lease = Lease(URL, "tcp://other:1", owner)
        assert (await lease.renew(1) is not None, lease.is_lost) == (is_lost, is_lost)

    run(main)


def test_state_directory_has_one_id(tmp_path: Path) -> None:
    configs: Any = [SimpleNamespace(state_directory=str(tmp_path / name)) for name in "ab"]
    first, second = configs
    assert own_id(first) == own_id(first) != own_id(second)


def test_lease_names_the_standby_at_the_time_of_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[bytes]()

    def put(**given: Any) -> dict[str, str]:
        written.append(given["Body"])
        return {"ETag": "2"}

    async def main() -> None:
        monkeypatch.setattr(Lease, "_s3", SimpleNamespace(put_object=put))
        lease, in_step = Lease(URL, "tcp://a:1", "a"), ["tcp://b:1"]
        lease.tag = "1"

        async def leave() -> None:
            await lease.renew(1)
            in_step[:] = [""]

        await asyncio.gather(leave(), lease.renew(1, lambda: in_step[0]))
        assert [LeaseRecord(**json.loads(each)).standby for each in written] == ["", ""]

    run(main)


def test_standby_takes_over_when_the_lease_of_a_dead_scheduler_expires(tmp_path: Path, store: dict[str, str]) -> None:
    lease = ("--standby-lease", URL, "--standby-lease-seconds", "12")
    with running(tmp_path, *lease, **store) as pair, Client(pair.both) as client:
        until(lambda: pair.second.encode() in _lease())
        go = tmp_path / "go"
        futures = [client.submit(noted, pair.notes, f"task-{number}", go) for number in range(10)]
        until(lambda: pair.starts()["task-0"])
        kill(pair.a)
        until_said(pair.b, "promoted: this is the scheduler now")
        go.touch()
        assert [future.result(30) for future in futures] == [f"task-{number}" for number in range(10)]
        assert {*pair.starts().values()} == {1}
        pair.a = pair.scheduler(pair.first)
        until_said(pair.a, f"{pair.second} has the lease")
        assert client.submit(noted, pair.notes, "later").result(30) == "later"


def _lease() -> bytes:
    with closing(boto3.session.Session().client("s3")) as s3:
        body: bytes = s3.get_object(Bucket="leases", Key="cluster")["Body"].read()
    return body
