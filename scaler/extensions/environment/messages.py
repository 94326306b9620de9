"""The state of an environment on a worker."""

from scaler.protocol import fields as f
from scaler.protocol.messages import WORKER, Message, message


@message(108, to_scheduler=(WORKER,))
class EnvironmentState(Message):
    """Start or end of an environment's preparation. Until the end, the worker returns the environment's tasks."""

    environment: f.Id
    accepts: bool
    text: str = ""  # display text: current step of the preparation
