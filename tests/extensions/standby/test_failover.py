"""Take-over by a standby, with real processes."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import psutil
import pytest

from scaler import Client
from scaler.config.load import model_of
from scaler.config.servers import scheduler_model
from scaler.errors import ConfigError, RefusedError, UnreachableError
from scaler.extensions.standby import command
from scaler.extensions.standby.command import take_over
from scaler.extensions.standby.term import Term, greeted
from scaler.net.access import Access
from scaler.security.credential import load_credential
from scaler.security.directory import KeysDirectory
from scaler.security.private_files import write_private
from tests.extensions.standby.pair import kill, noted, promote, running, until_said
from tests.integration.test_full_disk import SMALL_BYTES, limit_files
from tests.waiting import until


def test_promoted_standby_delivers_all_results_of_a_killed_scheduler(tmp_path: Path) -> None:
    with running(tmp_path) as pair, Client(pair.both) as client:
        go = tmp_path / "go"
        done = [client.submit(noted, pair.notes, f"done-{number}") for number in range(10)]
        assert [future.result(30) for future in done] == [f"done-{number}" for number in range(10)]
        once = [client.submit_verbose(noted, (pair.notes, f"once-{number}", go), retries=0) for number in range(20)]
        more = [client.submit(noted, pair.notes, f"more-{number}", go) for number in range(20)]
        until(lambda: pair.starts()["once-0"])
        kill(pair.a)
        began = time.monotonic()
        code, said = promote(pair.second)
        assert (code, "is the scheduler now (epoch 2)" in said) == (0, True), said
        print(said, f"{time.monotonic() - began:.2f} s")
        go.touch()
        assert [future.result(30) for future in once] == [f"once-{number}" for number in range(20)]
        assert [future.result(30) for future in more] == [f"more-{number}" for number in range(20)]
        assert client.submit(noted, pair.notes, "later").result(30) == "later"
        print(f"{time.monotonic() - began:.2f} s until all results")
        assert {*pair.starts().values()} == {1}


def test_frozen_scheduler_stops_when_it_wakes_after_a_promotion_and_nothing_ends_twice(tmp_path: Path) -> None:
    with running(tmp_path) as pair, Client(pair.both) as client:
        go, ended = tmp_path / "go", list[object]()
        futures = [client.submit_verbose(noted, (pair.notes, f"task-{n}", go), retries=0) for n in range(20)]
        for future in futures:
            future.add_done_callback(ended.append)
        until(lambda: pair.starts()["task-0"])
        pair.a.process.send_signal(signal.SIGSTOP)
        code, said = promote(pair.second)
        assert code == 0, said
        go.touch()
        assert [future.result(60) for future in futures] == [f"task-{number}" for number in range(20)]
        pair.a.process.send_signal(signal.SIGCONT)
        until_said(pair.a, "this scheduler stops serving")
        assert client.submit(noted, pair.notes, "later").result(30) == "later"
        assert len(ended) == 20
        assert {*pair.starts().values()} == {1}
        with pytest.raises(RefusedError, match=f"no longer the scheduler: connect to {pair.second}"):
            Client(pair.first)


def test_scheduler_continues_without_its_standby_whose_promotion_then_needs_force(tmp_path: Path) -> None:
    with running(tmp_path) as pair, Client(pair.both) as client:
        kill(pair.b)
        began = time.monotonic()
        assert client.submit(noted, pair.notes, "alone").result(30) == "alone"
        assert 2 < time.monotonic() - began < 10  # the scheduler waited for the standby first
        until_said(pair.a, "out of step")
        kill(pair.a)
        pair.b = pair.scheduler(pair.second, "--standby-of", pair.first)
        code, said = promote(pair.second)
        assert (code, "--force" in said) == (1, True), said
        assert promote(pair.second, "--force")[0] == 0
        assert client.submit(noted, pair.notes, "later").result(30) == "later"


def test_restarted_standby_catches_up_and_a_promoted_one_stays_promoted(tmp_path: Path) -> None:
    with running(tmp_path) as pair:
        with Client(pair.both, session="s") as client:
            assert pair.b.stop() == 0
            keyed = [client.submit_verbose(noted, (pair.notes, f"k-{n}"), key=f"k-{n}") for n in range(9)]
            assert [future.result(30) for future in keyed] == [f"k-{number}" for number in range(9)]
            pair.b = pair.scheduler(pair.second, "--standby-of", pair.first)
            until_said(pair.b, "in step with")
            code, said = promote(pair.second)  # while the first one runs
            assert code == 0, said
            until_said(pair.a, "this scheduler stops serving")
            assert client.submit(noted, pair.notes, "later").result(30) == "later"
        kill(pair.b)
        pair.b = pair.scheduler(pair.second, "--standby-of", pair.first)
        kill(pair.a)
        pair.a = pair.scheduler(pair.first)
        assert "is not promoted" in promote(pair.first)[1]
        with Client(pair.both, session="s") as again:
            assert {future.result(30) for future in again.futures()} >= {"k-0", "k-8"}
        assert {*pair.starts().values()} == {1}


def test_replaced_scheduler_follows_its_successor_and_takes_over_again(tmp_path: Path) -> None:
    with running(tmp_path) as pair, Client(pair.both) as client:
        kill(pair.a)
        assert promote(pair.second)[0] == 0
        pair.a = pair.scheduler(pair.first, "--standby-of", pair.second)
        until_said(pair.a, "in step with")
        assert client.submit(noted, pair.notes, "one").result(30) == "one"
        kill(pair.b)
        code, said = promote(pair.first)
        assert (code, "epoch 3" in said) == (0, True), said
        assert client.submit(noted, pair.notes, "two").result(30) == "two"


def test_promote_explains_wrong_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "CONNECT_SECONDS", 0.2)
    with pytest.raises(UnreachableError, match="does not answer"):
        asyncio.run(take_over("tcp://127.0.0.1:1", Access(), force=False))
    with running(tmp_path) as pair:
        assert "this is the scheduler, not a standby" in promote(pair.first)[1]
        assert "refused this command" in promote(pair.storage)[1]
        assert "refused this command" in promote(f"tcp://127.0.0.1:{int(pair.first[-5:]) + 2}")[1], "for monitors"
        with pytest.raises(RefusedError, match="is a standby of"):
            Client(pair.second)


def test_standby_needs_the_keys_of_its_scheduler_and_promotion_an_admin(tmp_path: Path) -> None:
    keys = KeysDirectory.create(tmp_path / "keys", "one")
    other = KeysDirectory.create(tmp_path / "other", "two")
    for role in ("admin", "client"):
        write_private(tmp_path / role, keys.add(f"a-{role}", role).to_text())
    with running(tmp_path, security=("--credentials", str(keys.path))) as pair:
        foreign, client = (other.of_scheduler(), "another cluster"), (keys.add("c", "client"), "is for the role client")
        for credential, why in (foreign, client):
            with pytest.raises(UnreachableError, match=f"refused this scheduler: .*{why}"):
                asyncio.run(greeted(pair.first, Access(credential, uses_local=False), Term(), 20))
        assert (
            asyncio.run(
                greeted(pair.first, Access(keys.of_scheduler(), uses_local=False), Term(0, partner=pair.first), 20)
            )
            == 1
        )
        access = Access(load_credential(tmp_path / "client"), uses_local=False)
        with pytest.raises(RefusedError, match="is for the role client, not admin"):
            asyncio.run(take_over(pair.second, access, force=True))
        code, said = promote(pair.second, "--credentials", str(tmp_path / "admin"))
        assert code == 0, said


def test_standby_with_a_full_disk_is_dropped_and_catches_up(tmp_path: Path) -> None:
    with running(tmp_path) as pair, Client(pair.both) as client:
        limit_files(psutil.Process(pair.b.pid), SMALL_BYTES)
        data = [bytes([number]) * 30_000 for number in range(200)]
        for _ in range(10):  # 60 MB of arguments in the journal
            assert [future.result(60) for future in [client.submit(len, each) for each in data]] == [30_000] * 200
        until_said(pair.a, "is out of step")
        code, said = promote(pair.second)
        assert (code, "--force" in said) == (1, True), said
        limit_files(psutil.Process(pair.b.pid), -1)
        until_said(pair.b, "in step with", 2)
        kill(pair.a)
        assert promote(pair.second)[0] == 0
        assert client.submit(noted, pair.notes, "later").result(30) == "later"


@pytest.mark.parametrize("missing", ["state_directory", "object_storage_address"])
def test_standby_without_its_own_journal_or_a_separate_object_storage_is_refused(missing: str) -> None:
    given = {"state_directory": "/tmp/x", "object_storage_address": "tcp://127.0.0.1:1"} | {missing: ""}
    with pytest.raises(ConfigError, match=missing):
        model_of(scheduler_model(), {"bind_address": "tcp://127.0.0.1:0", "standby_of": "tcp://127.0.0.1:2", **given})


def test_scheduler_that_waits_for_a_frozen_standby_stops_on_request(tmp_path: Path) -> None:
    with running(tmp_path, "--standby-timeout-seconds", "60") as pair, Client(pair.both) as client:
        pair.b.process.send_signal(signal.SIGSTOP)
        client.submit(noted, pair.notes, "held")
        assert pair.a.stop() == 0
        assert "could not be written" not in pair.a.output()
        assert not pair.starts()
        pair.a = pair.scheduler(pair.first)  # without its standby, as that does not answer
        until(lambda: pair.starts()["held"])
