"""Messages between a stream's task and its client, which the scheduler forwards."""

from scaler.protocol import fields as f
from scaler.protocol.messages import CLIENTS, Message, message

MAX_PIECE_BYTES = 4 * 1024 * 1024


@message(106, to_scheduler=CLIENTS, from_scheduler=CLIENTS, batch=True)
class StreamValue(Message):
    """A value of a stream, or a piece of a large value. Answered by StreamTaken."""

    stream: f.Id  # chosen by the client
    task: f.Id
    run: f.PeerId  # the sender's peer id, which changes if the task restarts
    number: f.Count64  # number of the value, from 0
    piece: f.Count32  # number of the piece within the value, from 0
    more: bool  # whether further pieces follow
    payload: bytes  # empty: the stream has ended before this number


@message(107, to_scheduler=CLIENTS, from_scheduler=CLIENTS)
class StreamTaken(Message):
    """Numbers of the last value received by the client and of the last value consumed by its program."""

    task: f.Id
    received: f.Count64
    taken: f.Count64
    run: f.PeerId  # `run` of the last value received
