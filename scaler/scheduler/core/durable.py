"""Records of durable sessions; `sessions.py` has the rules. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from scaler.protocol.messages import TaskGroup
from scaler.scheduler.core.accounts import ENTRY_BYTES


@dataclass(slots=True, eq=False)
class Label:
    """A session's record of a task. attempt: the last attempt, once the task has ended."""

    function: str
    key: bytes = b""
    tag: bytes = b""
    attempt: int = 0

    @property
    def size_bytes(self) -> int:
        return ENTRY_BYTES + len(self.function) + len(self.key) + len(self.tag)


def label_of(columns: TaskGroup, row: int) -> tuple[bytes, bytes]:
    key, tag = columns.labels[row] if columns.labels and columns.labels[row] else (b"", b"")
    return key, tag


def note_label(labels: dict[bytes, Label], columns: TaskGroup, row: int, *, runs: bool = True) -> int:
    """Record a label, keeping the first key and the last tag. runs: False for a repetition. Returns the bytes added."""
    task, (key, tag) = columns.ids[row], label_of(columns, row)
    label = labels.get(task)
    if label is None:
        label = labels[task] = Label(columns.spec.name, key, tag)
        return label.size_bytes
    if key and label.key not in (b"", key):
        return 0
    before = label.size_bytes
    label.key, label.tag = label.key or key, tag or label.tag
    if runs:
        label.function = columns.spec.name
    return label.size_bytes - before


@dataclass(slots=True, eq=False)
class DurableSession:
    """Durable part of a client. used_at: core time when a client last left or a task last ended."""

    name: str
    used_at: float
    client: str = ""
    labels: dict[bytes, Label] = field(default_factory=dict)
    owed: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    """Tasks whose requested results have not been sent yet."""
    unasked: set[bytes] = field(default_factory=set)
    """Tasks that were unfinished when the client connected and that the client has not submitted."""
    awaited: int = 0
    """Number of the last Finished with requested results. The next one is sent after its acknowledgement."""

    @property
    def size_bytes(self) -> int:
        return sum(label.size_bytes for label in self.labels.values())

    def ended(self, task: bytes, attempt: int, now: float) -> None:
        self.labels[task].attempt = attempt
        self.used_at = now
