"""The exchange that `docs/protocol.md` shows byte by byte.

`pytest tests/integration/test_protocol_page.py --rewrite` writes it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import zmq

from scaler import SchedulerClusterCombo
from scaler.ids import content_id
from scaler.protocol import codec
from scaler.protocol import messages as m
from scaler.protocol.session import Header
from tests.integration.bare_peer import decode

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
BEGIN, END = "<!-- exchange: begin -->\n", "<!-- exchange: end -->\n"
FUNCTION = b"\x05\x06math:factorial"
PEER = b"node-one"
OPENING, SESSION = PEER + bytes(range(1, 9)), PEER + bytes(range(0xA1, 0xA9))
TASK = PEER + bytes(7) + b"\1"
NAME = content_id(FUNCTION)
SAID: list[tuple[str, bytes, int, int, m.Message]] = [
    (
        "The client sends its `Hello`:",
        OPENING,
        0,
        0,
        m.Hello(m.Role.CLIENT, False, m.PROTOCOL_VERSION, "node", "", "", "example", 7, m.ClientDetails("node")),
    ),
    (
        "The scheduler accepts the client and assigns a session:",
        SESSION,
        0,
        0,
        m.Welcome(False, 1, 60.0, 2.0, "tcp://127.0.0.1:8517", -1),
    ),
    (
        "The client submits a task and its function:",
        SESSION,
        1,
        0,
        m.Submit(
            [(NAME, FUNCTION)], [m.TaskGroup(m.Spec(NAME, name="math:factorial"), [TASK], [b'\x06{"args":[20]}'])], 0
        ),
    ),
    (
        "The scheduler sends the value, which a worker computed in 11 microseconds:",
        SESSION,
        1,
        1,
        m.Finished(1, [TASK], [m.Outcome.SUCCESS], [b"\x062432902008176640000"], [11]),
    ),
    ("The client acknowledges the result:", SESSION, 2, 1, m.AcknowledgeResults(1)),
    ("The client disconnects:", SESSION, 0, 1, m.Goodbye("done")),
]


def exchange() -> list[list[bytes]]:
    """Return the frames of each envelope as the page shows them."""
    section = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    blocks = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    return [[bytes_of(rows) for rows in re.split(r"^\w+ \(.*\n", block, flags=re.MULTILINE)[1:]] for block in blocks]


def bytes_of(rows: str) -> bytes:
    return bytes.fromhex("".join(re.findall(r"^[0-9a-f]{4}  ([0-9a-f ]{47})", rows, re.MULTILINE)))


def shown(text: str, session: bytes, sequence: int, acknowledged: int, message: m.Message) -> str:
    header = Header(m.PROTOCOL_VERSION, 0, session, sequence, acknowledged).pack()
    body = codec.encode(message)
    rows = [text, "", "```text"]
    for name, frame in (("header", header), (type(message).__name__, body)):
        rows.append(f"{name} ({len(frame)} bytes)")
        for at in range(0, len(frame), 16):
            part = frame[at : at + 16]
            readable = "".join(chr(byte) if 32 <= byte < 127 and byte != 0x60 else "." for byte in part)
            rows.append(f"{at:04x}  {part.hex(' '):47}  {readable}")
    return "\n".join([*rows, "```", "", ""])


def test_page_shows_sent_messages(request: pytest.FixtureRequest) -> None:
    expected = "\n" + "".join(shown(*each) for each in SAID)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    if request.config.getoption("--rewrite"):
        PAGE.write_text(before + BEGIN + expected + END + rest.partition(END)[2])
    assert PAGE.read_text().partition(BEGIN)[2].partition(END)[0] == expected


def test_capnp_library_reads_its_bodies() -> None:
    names = ["hello", "welcome", "submit", "finished", "acknowledgeResults", "goodbye"]
    bodies = [decode(body) for _, body in exchange()]
    assert [body.which() for body in bodies] == names
    assert bodies[2].submit.groups[0].spec.deliver
    assert bodies[3].finished.payloads == b"\x062432902008176640000"


def test_scheduler_answers_as_documented() -> None:
    hello, welcome, submit, finished, noted, goodbye = exchange()
    with SchedulerClusterCombo(n_workers=1, insecure_no_auth=True) as combo, zmq.Context() as context:
        socket = context.socket(zmq.DEALER)
        socket.connect(combo.get_address())
        socket.send_multipart(hello)
        header, body = answer(socket, "welcome")
        assert header[8:16] == PEER
        assert header[24:] == welcome[0][24:]
        session = header[8:24]
        socket.send_multipart([submit[0][:8] + session + submit[0][24:], submit[1]])
        header, body = answer(socket, "finished")
        assert header[8:24] == session
        assert header[24:] == finished[0][24:]
        shown, found = decode(finished[1]).to_dict(), decode(body).to_dict()
        for each in (shown, found):
            del each["finished"]["durationUs"]
        assert found == shown
        for envelope in (noted, goodbye):
            socket.send_multipart([envelope[0][:8] + session + envelope[0][24:], envelope[1]])
        socket.close()


def answer(socket: zmq.Socket[bytes], name: str) -> tuple[bytes, bytes]:
    """Return header and body of the next message with this name, and skip other messages."""
    while True:
        assert socket.poll(30_000)
        header, body = socket.recv_multipart()
        if decode(body).which() == name:
            return header, body
