"""Behavior of every folder for a backend's objects, on disk and in S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from scaler.errors import ObjectLostError, UnreachableError, UsageError
from scaler.object_storage.backend.folders import ObjectFolder, open_backend
from scaler.object_storage.backend.run import STALE_SECONDS, BackendRun, remove_stale
from tests.engines.moto_rig import moto_server


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_server() as address:
        yield address


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    boto3.session.Session().client("s3").create_bucket(Bucket="bucket")
    return "s3://bucket"


@pytest.fixture(params=["disk", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return tmp_path.as_uri()
    return str(request.getfixturevalue("bucket"))


@pytest.fixture
def folder(root: str, request: pytest.FixtureRequest) -> ObjectFolder:
    return open_backend(f"{root}/{request.node.name.partition('[')[0]}")


def content(*parts: bytes) -> list[memoryview]:
    return [memoryview(part) for part in parts]


def test_reads_ranges_of_stored_objects(folder: ObjectFolder) -> None:
    large = bytes(range(256)) * 150_000
    folder.put("run/one", content(large[:7], large[7:20_000_000], large[20_000_000:]))
    assert folder.read("run/one", 5, 9) == large[5:9]
    assert folder.read("run/one", 16_777_210, 16_777_220) == large[16_777_210:16_777_220]
    assert folder.read("run/one", len(large) - 3) == large[-3:]
    folder.put("run/one", content(b"again"))
    assert folder.read("run/one", 0) == b"again"


def test_missing_object_is_lost_and_deleting_it_is_harmless(folder: ObjectFolder) -> None:
    with pytest.raises(ObjectLostError, match="it is not at"):
        folder.read("run/none", 0)
    folder.delete(["run/none"])
    folder.delete([])


def test_folders_and_names_are_listed_until_their_objects_are_deleted(folder: ObjectFolder) -> None:
    assert folder.folders() == []
    for name in ("a/1", "a/2", "b/1"):
        folder.put(name, content(b"x"))
    assert sorted(folder.folders()) == ["a", "b"]
    assert sorted(folder.names("a")) == ["a/1", "a/2"]
    folder.delete(["a/1", "a/2"])
    assert folder.folders() == ["b"]


def test_failed_put_leaves_nothing(folder: ObjectFolder) -> None:
    def broken() -> Iterator[memoryview]:
        yield memoryview(bytes(20_000_000))
        raise UnreachableError("closed")

    with pytest.raises(UnreachableError, match="closed"):
        folder.put("run/broken", broken())
    assert folder.names("run") == [] if "run" in folder.folders() else True


def test_run_removes_only_leftovers_of_ended_runs(root: str) -> None:
    url = f"{root}/tidy"
    folder = open_backend(url)
    left, living = BackendRun(url), BackendRun(url)
    folder.put(f"{left.name}/object", content(b"x"))
    folder.put("mine/object", content(b"x"))
    now = float(folder.read(f"{left.name}/alive", 0))
    assert remove_stale(folder, living.name, now + STALE_SECONDS - 60) == []
    assert remove_stale(folder, living.name, now + STALE_SECONDS + 60) == [left.name]
    assert sorted(folder.folders()) == ["mine", living.name]


def test_reports_a_missing_bucket_at_startup(bucket: str) -> None:
    with pytest.raises(UsageError, match=r"NoSuchBucket.*create the bucket other"):
        BackendRun("s3://other/prefix")


def test_host_without_credentials_learns_where_to_get_them(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    with pytest.raises(UsageError, match="AWS_PROFILE"):
        BackendRun(bucket)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("bucket/prefix", "not a URL"),
        ("s3://", "not a URL"),
        ("memory://here", "other processes cannot read it"),
        ("nonsense://x/y", "nonsense"),
        ("file:///proc/none", "cannot write"),
    ],
)
def test_url_without_a_backend_raises_with_the_reason(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        BackendRun(url)
