"""The state of an environment on a worker."""

from scaler.protocol import fields as f
from scaler.protocol.messages import WORKER, Message, message


@message(108, to_scheduler=(WORKER,))
class EnvironmentState(Message):
    """Start of an environment's preparation, in which the worker returns tasks that need it, or its end."""

    environment: f.Id
    accepts: bool
    text: str = ""  # display text: current step of the preparation
