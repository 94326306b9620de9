"""A short fuzzing run with a fixed seed, in a separate process with measured memory. `make fuzz` runs longer.

All targets together run tens of thousands of mutated messages: bit flips, truncation, splices, wrong sessions,
replays, wrong roles, amplifying pointers, and lists that claim 2^29 elements. `targets.py` defines the requirements.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler.errors import ProtocolError
from scaler.protocol import fields as f
from scaler.protocol import messages as m
from scaler.protocol.codec import decode, encode
from scaler.protocol.structs import struct_codec
from tests.fuzz import run
from tests.fuzz.samples import Sampler
from tests.fuzz.targets import TARGETS

MAX_GROWN_BYTES = 64 * 1024 * 1024
SEED = 20_261_122


@pytest.mark.parametrize("name", TARGETS)
def test_every_recorded_input_is_accepted(name: str) -> None:
    target = TARGETS[name]
    for data in target.seeds():
        target.run(data)


def test_mutated_messages_harm_no_peer_and_use_little_memory() -> None:
    command = [sys.executable, "-m", "tests.fuzz.walk", "0.3", str(SEED)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=55, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    report = json.loads(done.stdout)
    assert report.keys() == TARGETS.keys()
    assert sum(each["messages"] for each in report.values()) >= 30_000
    assert sum(each["grown_bytes"] for each in report.values()) <= MAX_GROWN_BYTES


def test_long_run_reports_each_finding_once_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FOUND", tmp_path)

    def bear(data: bytes) -> int:
        assert data != b"not this"
        return 1 // len(data)

    findings = run.Findings("codec", bear)
    for data in (b"good", b"", b"not this", b"", b"good", b"not this"):
        findings.run(data)
    kept = [file for file in tmp_path.iterdir() if not file.suffix]
    found = {file.read_bytes(): file.with_suffix(".txt").read_text() for file in kept}
    assert found.keys() == {b"", b"not this"}
    assert "ZeroDivisionError" in found[b""]
    assert "AssertionError" in found[b"not this"]


# -- amplification: memory and time used by small bodies


def claiming(count: int) -> Iterator[bytes]:
    """Yield bodies of every message type, in which one list claims this many elements."""
    for kind in m.NUMBERS:
        body = encode(Sampler(rows=64).message(kind))
        decode(body)
        for at in range(24, len(body) - 8, 8):
            word = int.from_bytes(body[at : at + 8], "little")
            if word & 3 == 1 and word >> 35:
                yield body[:at] + (word & 2**35 - 1 | count << 35).to_bytes(8, "little") + body[at + 8 :]


@pytest.mark.parametrize("count", [2**29 - 1, 2**28, 65_537, 8_192])
def test_list_with_an_inflated_length_costs_nothing(count: int) -> None:
    refused = 0
    bodies = list(claiming(count))
    tracemalloc.start()
    for body in bodies:
        try:
            decode(body)
        except ProtocolError:
            refused += 1
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused > 50
    assert peak_bytes < 256 * 1024


def test_entries_without_words_cost_as_much_as_full_ones() -> None:
    """A list of structs without words takes no space for any number of elements: 48 bytes must not use much CPU."""
    codec = struct_codec(m.WorkerHeartbeat)
    head = [0] * codec.words
    entries = 8_000
    head[codec.data_words] = f.list_pointer(0, f.STRUCTS, codec.pointer_words - 1)
    words = [0, 1 << 48 | 1 << 32, m.NUMBERS[m.WorkerHeartbeat]]
    words += [f.struct_pointer(codec.data_words, codec.pointer_words, 0), *head, entries << 2]
    words[0] = len(words) - 1 << 32
    body = struct.pack(f"<{len(words)}Q", *words)
    with pytest.raises(ProtocolError, match="would take too much memory"):
        decode(body)
    few = struct.pack(f"<{len(words)}Q", *words[:-1], 5 << 2)
    assert decode(few) == m.WorkerHeartbeat(0.0, 0.0, 0, 0, 0.0, [m.ProcessorStatus(0, 0.0, 0, False, False)] * 5)
