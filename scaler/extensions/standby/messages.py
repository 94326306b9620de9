"""Messages between a scheduler and its standby."""

from typing import ClassVar

from scaler.protocol import fields as f
from scaler.protocol.messages import Inquiry, Message, Reply, Role, message


@message(112, to_scheduler=(Role.SCHEDULER,))
class Following(Message):
    """Requests the journal, then reports how much of it the standby has written."""

    address: str  # the standby's
    number: f.Count64  # 1 + number of the last record on its disk; 0: the copy is not complete
    received: f.Count64  # number of bytes received from the stream
    at: f.Seconds  # time on the sender's clock
    leaves: bool  # the standby cannot write now: the scheduler should not wait for it


@message(113, from_scheduler=(Role.SCHEDULER,), batch=True)
class JournalBytes(Message):
    """The next part of the stream of records; see `standby.core`."""

    at: f.Seconds  # copied from the last Following
    seconds: f.Seconds  # period after `at` in which the scheduler acknowledges nothing that the standby lacks
    data: bytes


@message(114, to_scheduler=(Role.ADMIN,))
class Promote(Inquiry):
    """Makes a standby the scheduler. Answered by Promoted."""

    extension: ClassVar[str] = "standby"
    force: bool  # promote even if acknowledged tasks may be lost


@message(115, from_scheduler=(Role.ADMIN,))
class Promoted(Reply):
    epoch: f.Count64
    refused: str  # reason, display text; empty if promoted
