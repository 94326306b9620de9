"""Calls and jobs over HTTP, on a real cluster with two client keys."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
import msgpack
import psutil
import pytest

from scaler import Client
from scaler.extensions.http.keys import Option, sessions_of
from tests.extensions.http.server_rig import SECONDS, Server, events_of
from tests.waiting import until, within

pytestmark = pytest.mark.timeout(120)
PACKED = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("http"))
    yield server
    server.close()


# -- calls


def test_call_returns_its_result(server: Server) -> None:
    found = server.call("double", 21)
    assert (found["state"], found["result"], found["function"]) == ("done", 42, "http_functions:double")
    assert server.call("later", 1)["result"] == 2


def test_result_arrives_by_id_and_location(server: Server, tmp_path: Path) -> None:
    made = server.alice.post("/calls", json={"function": "http_functions:wait_for", "args": [f"{tmp_path}/go"]})
    assert made.status_code == 202
    path = made.headers["location"].removeprefix("/v1")
    assert path == f"/calls/{made.json()['id']}"
    assert server.alice.get(path, params={"wait": 0.1}).status_code == 202
    (tmp_path / "go").touch()
    assert server.alice.get(path, params={"wait": SECONDS}).json()["result"] == "released"


def test_exception_becomes_a_problem_with_its_traceback(server: Server) -> None:
    found = server.call("fail", "no such thing")
    assert found["state"] == "failed"
    assert (found["problem"]["type"], found["problem"]["message"]) == ("LookupError", "no such thing")
    assert 'http_functions.py", line' in found["problem"]["traceback"]
    assert "scaler" not in found["problem"]["traceback"]


@pytest.mark.parametrize(
    ("function", "kind"), [("leave", "SystemExit"), ("give_up", "asyncio.exceptions.CancelledError")]
)
def test_exit_and_cancellation_by_a_function_are_problems(server: Server, function: str, kind: str) -> None:
    found = server.call(function, wait=5)
    assert (found["state"], found.get("problem", {}).get("type")) == ("failed", kind)
    assert server.call("double", 1)["result"] == 2


def test_lost_process_becomes_a_problem(server: Server) -> None:
    found = server.call("die", options={"retries": 0})
    assert (found["state"], found["problem"]["type"]) == ("failed", "ProcessorDiedError")


@pytest.mark.parametrize(
    ("function", "reason"), [("today", "type date is not"), ("raw", "bytes"), ("nan", "Out of range float")]
)
def test_result_that_json_lacks_names_its_type(server: Server, function: str, reason: str) -> None:
    problem = server.call(function)["problem"]["message"]
    assert reason in problem
    assert "return None, bool, int" in problem


def test_messagepack_carries_bytes_both_ways(server: Server) -> None:
    body = msgpack.packb({"function": "http_functions:double", "args": [b"\xff"]})
    answer = server.alice.post("/calls?wait=20", content=body, headers=PACKED)
    assert answer.headers["content-type"] == "application/msgpack"
    assert msgpack.unpackb(answer.content)["result"] == b"\xff\xff"
    again = server.alice.get(f"/calls/{msgpack.unpackb(answer.content)['id']}")
    assert msgpack.unpackb(again.content)["result"] == b"\xff\xff"


def test_messagepack_result_has_keys_of_any_type(server: Server) -> None:
    body = msgpack.packb({"function": "http_functions:pairs"})
    answer = server.alice.post("/calls?wait=20", content=body, headers=PACKED)
    found = msgpack.unpackb(answer.content, strict_map_key=False, use_list=False)
    assert (found["state"], found["result"]) == ("done", {(1, 2): b"3"})


def test_malformed_messagepack_gives_400(server: Server) -> None:
    wrong = msgpack.packb({"function": "operator:truediv", "kwargs": {1: 2}})
    for body in (b"\xc1", b"\x91" * 5000, b"\x80\x80", wrong):
        assert server.alice.post("/calls", content=body, headers=PACKED).status_code == 400


def test_calls_count_for_the_key_of_the_token(server: Server) -> None:
    server.call("double", 1)
    with Client(server.address, credentials=str(server.home / "alice.credentials")) as client:
        rows = client.table("shares")
    assert [row.key for row in rows if not row.client] == ["alice"]  # a key has a row after its first task


def test_cancelled_call_ends_and_its_result_can_be_dropped(server: Server, tmp_path: Path) -> None:
    path = f"/calls/{server.call('wait_for', f'{tmp_path}/never', wait=0)['id']}"
    assert server.alice.delete(path).json()["state"] == "cancelled"
    assert server.alice.delete(path).status_code == 200
    assert server.alice.get(path).status_code == 404


def test_call_without_a_worker_that_fits_is_pending_and_can_be_cancelled(server: Server) -> None:
    found = server.call("double", 1, wait=0.1, options={"capabilities": {"absent": None}})
    assert found["state"] == "pending"
    assert server.alice.delete(f"/calls/{found['id']}").json()["state"] == "cancelled"


def test_events_end_with_the_result(server: Server, tmp_path: Path) -> None:
    call = server.call("wait_for", f"{tmp_path}/go", wait=0)
    events = events_of(server.alice, f"/calls/{call['id']}")
    assert next(events)[0] == "state"
    (tmp_path / "go").touch()
    name, document = list(events)[-1]
    assert (name, document["state"], document["result"]) == ("end", "done", "released")


def test_event_id_that_is_no_position_starts_at_the_beginning(server: Server) -> None:
    call = server.call("double", 1)
    for last in ("9" * 5000, "-1", "x"):
        assert list(events_of(server.alice, f"/calls/{call['id']}", **{"Last-Event-ID": last}))[-1][0] == "end"


# -- refused


@pytest.mark.parametrize("wrong", [[], {}, "\ud800", -1, 10**30, 1.5, [[]], {"a": {}}, {"\ud800": 1}, ["\ud800"]])
@pytest.mark.parametrize("option", get_args(Option))
def test_option_with_any_value_is_accepted_or_refused_as_malformed(server: Server, option: str, wrong: object) -> None:
    body = {"function": "operator:truediv", "args": [1, 2], "options": {option: wrong}}
    answer = server.bob.post("/calls", content=json.dumps(body))
    assert answer.status_code in (202, 400), answer.text
    if answer.status_code == 202:
        server.bob.delete(f"/calls/{answer.json()['id']}")


@pytest.mark.parametrize(
    "function",
    [
        "os:system",
        "http_functions:os.system",
        "http_functions:_private",
        "http_functions:nope.x",
        "operator:floordiv",
        "",
    ],
)
def test_function_that_is_not_allowed_gives_403(server: Server, function: str) -> None:
    answer = server.alice.post("/calls", json={"function": function})
    assert answer.status_code == 403
    assert "add it to `allowed`" in answer.json()["error"]


def test_star_does_not_permit_what_the_module_imports(server: Server) -> None:
    problem = server.call("sqrt", 4)["problem"]
    assert "is defined in math: to permit it" in problem["message"]
    assert "SerializationError" in server.call("nope")["problem"]["type"]


@pytest.mark.parametrize("token", ["", "wrong", "\xff"])
def test_request_without_a_valid_token_gives_401(server: Server, token: str) -> None:
    with server.client() as client:
        for path in ("/calls", "/schedules", "/nothing"):
            headers = {b"Authorization": f"Bearer {token}".encode("latin-1")} if token else {}
            answer = client.post(path, content=b"{}", headers=headers)
            assert answer.status_code == 401
            assert "Bearer" in answer.headers["www-authenticate"]


def test_call_of_another_key_looks_like_an_unknown_one(server: Server) -> None:
    call = server.call("double", 1)
    durable = server.call("double", 1, session="shared", key="one")
    for path in (f"/calls/{call['id']}", f"/calls/{durable['id']}", "/calls/unknown", "/calls/..", "/calls/a.b"):
        for method in ("GET", "DELETE"):
            assert server.bob.request(method, path).status_code == 404
        assert server.bob.get(f"{path}/events").status_code == 404
    assert server.alice.get(f"/calls/{call['id']}").json()["result"] == 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "Invalid JSON"),
        (b"\xff", "Invalid JSON"),
        (b"[" * 9000, "Invalid JSON"),
        (b"[]", "must be an object with fields function, args"),
        (b"{}", "function: Field required"),
        (b'{"function": "f", "arg": [1]}', "arg: Extra inputs are not permitted"),
        (b'{"function": "f", "args": {}}', "args: Input should be a valid array"),
        (b'{"function": "operator:truediv", "session": "../x"}', "session: String should match pattern"),
        (b'{"function": "operator:truediv", "session": "schedules-2026-11-30"}', "belong to schedules"),
        (b'{"function": "operator:truediv", "key": "x"}', "a key needs a session"),
        (b'{"function": "operator:truediv", "options": {"retry": 3}}', "options.retry: Input should be 'priority'"),
        (b'{"function": "operator:truediv", "options": {"memory": "much"}}', "memory"),
        (b'{"function": "operator:truediv", "options": {"retries": -1}}', "retries is -1"),
    ],
)
def test_malformed_request_gives_400_with_the_remedy(server: Server, body: bytes, reason: str) -> None:
    answer = server.alice.post("/calls", content=body)
    assert answer.status_code == 400, answer.text
    assert reason in answer.json()["error"]


def test_large_request_gives_413(server: Server) -> None:
    answer = server.alice.post("/calls", json={"function": "operator:truediv", "args": ["x" * 10_000]})
    assert answer.status_code == 413
    assert "max_body_bytes" in answer.json()["error"]


def test_method_and_path_that_do_not_exist_name_those_that_do(server: Server) -> None:
    answers = [server.alice.put("/calls"), server.alice.delete("/calls"), server.alice.post("/calls/x")]
    assert [(each.status_code, each.headers["allow"]) for each in answers] == [
        (405, "GET, POST, DELETE"),
        (405, "POST"),
        (405, "GET, DELETE"),
    ]
    assert answers[1].json()["error"] == "DELETE is not allowed here: use POST"
    missing = server.alice.get("/jobs/x")
    assert (missing.status_code, missing.json()["error"]) == (
        404,
        "there is no /v1/jobs/x here: /v1/openapi.json lists all paths",
    )


def test_head_request_leaves_no_event_stream_open(server: Server, tmp_path: Path) -> None:
    call = server.call("wait_for", f"{tmp_path}/go", wait=0)
    assert server.alice.head(f"/calls/{call['id']}/events").status_code == 405
    (tmp_path / "go").touch()


def test_unknown_parameter_or_wait_gives_400(server: Server) -> None:
    for query in ("wait=-1", "wait=61", "wait=x", "wait=nan", "wat=1"):
        assert server.alice.get(f"/calls/x?{query}").status_code == 400
    assert server.alice.get("/schedules?wait=1").status_code == 400


def test_calls_above_the_limit_of_a_key_give_429_and_other_keys_continue(server: Server, tmp_path: Path) -> None:
    waiting = [server.call("wait_for", f"{tmp_path}/go", wait=0)["id"] for _ in range(20)]
    refused = server.alice.post("/calls", json={"function": "operator:truediv", "args": [1, 2]})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert "max_calls_per_key" in refused.json()["error"]
    assert server.bob.post("/calls", json={"function": "operator:truediv", "args": [1, 2]}).status_code == 202
    (tmp_path / "go").touch()
    for each in waiting:
        assert server.alice.get(f"/calls/{each}", params={"wait": SECONDS}).json()["state"] == "done"
    assert server.call("double", 2)["result"] == 4


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Host": "evil.example"}])
def test_other_pages_and_names_are_refused(server: Server, headers: dict[str, str]) -> None:
    assert server.alice.post("/calls", json={"function": "operator:truediv"}, headers=headers).status_code == 403


def test_client_that_disconnects_during_a_request_changes_nothing(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        token = server.tokens["alice"]
        head = f"POST /v1/calls HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: 99\r\n"
        peer.sendall(f"{head}\r\n{{".encode())
    assert server.call("double", 3)["result"] == 6


# -- jobs


def test_job_returns_output_and_exit_code(server: Server) -> None:
    script = "import sys\nprint(sys.argv[1:], flush=True)\nprint('schön', file=sys.stderr)\nsys.exit(len(sys.argv))\n"
    found = server.job(script, "two words", "$HOME", "--flag", 'quote"')
    assert found["state"] == "failed"
    assert found["exit_code"] == 5
    assert found["output"] == "['two words', '$HOME', '--flag', 'quote\"']\nschön\n"
    assert found["problem"]["message"] == "the script ended with exit code 5"
    assert server.job("print(1)")["exit_code"] == 0


def test_job_imports_the_modules_of_its_worker(server: Server) -> None:
    assert server.job("import http_functions; print(http_functions.double(4))")["output"] == "8\n"


def test_job_that_a_signal_ends_has_the_exit_code_of_a_shell(server: Server) -> None:
    assert server.job("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")["exit_code"] == 137


def test_job_ends_although_a_background_process_keeps_its_output_open(server: Server) -> None:
    found = server.job("import subprocess; print(subprocess.Popen(['sleep', '300']).pid, flush=True)")
    assert found["state"] == "done"
    psutil.Process(int(found["output"])).kill()


def test_cancelled_job_ends_with_its_children(server: Server) -> None:
    script = (
        "import subprocess\nchild = subprocess.Popen(['sleep', '300'])\nprint(child.pid, flush=True)\nchild.wait()\n"
    )
    path = f"/calls/{server.job(script, wait=0)['id']}"
    child = int(until(lambda: server.alice.get(path).json()["output"], SECONDS))
    assert server.alice.delete(path).json()["state"] == "cancelled"
    until(lambda: not psutil.pid_exists(child), SECONDS)


def test_events_of_a_job_continue_after_the_last_one_received(server: Server) -> None:
    found = server.job("import sys\nfor file in (sys.stdout, sys.stderr):\n    print(1, file=file)\n")
    path = f"/calls/{found['id']}"

    def text(**headers: str) -> str:
        return "".join(each["text"] for name, each in events_of(server.alice, path, **headers) if name == "output")

    assert text() == "1\n1\n"
    assert text(**{"Last-Event-ID": "2"}) == "1\n"
    assert text(**{"Last-Event-ID": "4"}) == ""


def test_long_output_keeps_its_end(server: Server) -> None:
    found = server.job("for number in range(200_000): print(number, 'x' * 10)")
    assert found["output"].endswith("199999 xxxxxxxxxx\n")
    assert 2**19 <= len(found["output"]) <= 2**20
    assert found["cut_characters"] > 0


@pytest.mark.parametrize(
    "body",
    [{"script": "1", "args": [1]}, {"script": "1", "name": "../x.py"}, {"script": "1", "name": ""}, {"args": []}],
)
def test_malformed_job_gives_400(server: Server, body: dict[str, Any]) -> None:
    assert server.alice.post("/jobs", json=body).status_code == 400


# -- documents


def test_openapi_lists_each_route_and_needs_no_token(server: Server) -> None:
    with server.client() as client:
        document = client.get("/openapi.json").json()
    listed = {(method, path) for path, each in document["paths"].items() for method in each}
    assert {("post", "/v1/calls"), ("get", "/v1/calls/{id}"), ("delete", "/v1/calls/{id}")} < listed
    names = [each["operationId"] for path in document["paths"].values() for each in path.values()]
    assert len(names) == len({*names})
    assert document["paths"]["/v1/schedules"]["get"]["parameters"] == []
    assert [*document["paths"]["/v1/calls"]["post"]["responses"]] == ["2XX", "default"]
    for method, path in listed:
        if path != "/v1/openapi.json":
            with server.client() as client:
                answer = client.request(method, path.removeprefix("/v1"))
            assert answer.status_code == 401


# -- losses


def test_calls_of_durable_sessions_survive_the_server_and_others_are_lost(server: Server, tmp_path: Path) -> None:
    durable = server.call("wait_for", f"{tmp_path}/go", f"{tmp_path}/notes", wait=0, session="night", key="a")
    lost = server.call("double", 5)
    until((tmp_path / "notes").exists, SECONDS)
    process = server.component("http")
    process.kill()
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, SECONDS)
    until(server.answers, SECONDS)
    answer = server.alice.get(f"/calls/{lost['id']}")
    assert answer.status_code == 404
    assert "which only calls in durable sessions survive" in answer.json()["error"]
    (tmp_path / "go").touch()
    assert durable["id"] == "night.a"
    found = server.alice.get("/calls/night.a", params={"wait": SECONDS}).json()
    assert found.get("state") == "done", found
    again = server.call("wait_for", "elsewhere", session="night", key="a")
    assert again["result"] == "released"
    assert (tmp_path / "notes").read_text() == "started\n"


def test_key_of_another_function_gives_400(server: Server) -> None:
    body = {"function": "os.path:join", "args": ["a"], "session": "keys", "key": "k"}
    assert server.alice.post("/calls", params={"wait": SECONDS}, json=body).json()["result"] == "a"
    answer = server.alice.post("/calls", json=body | {"function": "operator:truediv", "args": [1, 2]})
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        "the key k belongs to a call of os.path:join: choose another key",
    )


def test_unknown_durable_call_creates_no_session(server: Server) -> None:
    assert server.alice.get("/calls/absent.a").status_code == 404
    assert server.alice.get("/calls/absent.a").status_code == 404
    # on this machine, only clients with a session use their key
    with Client(server.address, credentials=str(server.home / "alice.credentials"), session="observer") as client:
        assert "absent" not in [row.name for row in sessions_of(client)]


def test_sessions_of_schedules_are_not_taken_by_requests(server: Server) -> None:
    credentials = str(server.home / "alice.credentials")
    with Client(server.address, credentials=credentials, session="schedules-2026-11-30") as client:
        client.submit_verbose(abs, (1,), key="nightly", tag="http").result(SECONDS)
    assert server.alice.get("/calls/schedules-2026-11-30.nightly").status_code == 404
    with Client(server.address, credentials=credentials, session="schedules-2026-11-30"):
        pass


def test_session_in_use_gives_409(server: Server) -> None:
    with Client(server.address, credentials=str(server.home / "alice.credentials"), session="busy"):
        body = {"function": "operator:truediv", "args": [1, 2], "session": "busy"}
        answer = server.alice.post("/calls", json=body)
    assert answer.status_code == 409
    assert "'busy' is in use" in answer.json()["error"]


def test_calls_survive_a_restart_of_the_scheduler_and_new_ones_get_503_meanwhile(
    server: Server, tmp_path: Path
) -> None:
    waiting = server.call("wait_for", f"{tmp_path}/go", f"{tmp_path}/notes", wait=0)
    until((tmp_path / "notes").exists, SECONDS)
    scheduler = server.component("scheduler")
    scheduler.suspend()
    scheduler.kill()

    def answer() -> httpx.Response:
        return server.alice.post("/calls", json={"function": "operator:truediv", "args": [1, 2]})

    statuses: set[int] = set()

    def is_back() -> bool:
        statuses.add(found := answer().status_code)
        return found == 202 and 503 in statuses

    until(is_back, SECONDS)
    assert statuses <= {202, 503}
    (tmp_path / "go").touch()
    assert server.alice.get(f"/calls/{waiting['id']}", params={"wait": SECONDS}).json()["result"] == "released"
    assert (tmp_path / "notes").read_text() == "started\n"


def test_revoked_key_gives_403(server: Server) -> None:
    call = server.bob.post("/calls?wait=20", json={"function": "operator:truediv", "args": [1, 2]}).json()
    assert call["result"] == 0.5
    server.keys.revoke("bob")
    answers: list[str] = []

    def is_refused() -> bool:
        answer = server.bob.post("/calls", json={"function": "operator:truediv", "args": [1, 2]})
        answers.append(answer.text)
        return answer.status_code == 403

    assert within(SECONDS, is_refused), {*answers}
    assert server.bob.get(f"/calls/{call['id']}").status_code == 403  # stored results too
    assert server.bob.get(f"/calls/{call['id']}/events").status_code == 403


def test_port_in_use_ends_the_server_with_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "scaler.cli", "scaler", "http", "tcp://127.0.0.1:1", "--web-port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"web_port {port} is in use" in done.stderr
