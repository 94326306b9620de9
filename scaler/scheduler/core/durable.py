"""What the scheduler keeps of a durable session beside its client; `sessions.py` has the rules. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from scaler.protocol.messages import TaskGroup
from scaler.scheduler.core.accounts import ENTRY_BYTES


@dataclass(slots=True, eq=False)
class Label:
    """What a session knows of a task beside its state. attempt: the last one, once the task has ended."""

    function: str
    key: bytes = b""
    tag: bytes = b""
    attempt: int = 0

    @property
    def size_bytes(self) -> int:
        """What it counts in the account of the session's key."""
        return ENTRY_BYTES + len(self.function) + len(self.key) + len(self.tag)


def label_of(columns: TaskGroup, row: int) -> tuple[bytes, bytes]:
    """Return the key and the tag that were submitted with a task."""
    key, tag = columns.labels[row] if columns.labels and columns.labels[row] else (b"", b"")
    return key, tag


def note_label(labels: dict[bytes, Label], columns: TaskGroup, row: int, *, runs: bool = True) -> int:
    """Note what was submitted with a task: the first key stays, and the last tag. Returns the bytes that it adds.

    runs: False for a task that came again, and runs what it ran before.
    """
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
    """The durable part of a client. used_at: when a client left it or a task of it ended, in the core's own time."""

    name: str
    used_at: float
    client: str = ""
    """Host and pid of the client that uses it, or used it last."""
    labels: dict[bytes, Label] = field(default_factory=dict)
    """Of all its tasks, ended or not, in the order of their submission."""
    owed: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    """Tasks whose results its client has asked for and is not sent yet."""
    unasked: set[bytes] = field(default_factory=set)
    """Tasks that had not ended when its client came, and that it has not submitted."""
    awaited: int = 0
    """Number of the last Finished with such results; the next ones follow when the client has acknowledged it."""

    @property
    def size_bytes(self) -> int:
        """What its labels count in the account of its key."""
        return sum(label.size_bytes for label in self.labels.values())

    def ended(self, task: bytes, attempt: int, now: float) -> None:
        """Note that a task ended with this attempt."""
        self.labels[task].attempt = attempt
        self.used_at = now
