"""The state of an environment on a worker."""

from scaler.protocol import fields as f
from scaler.protocol.messages import WORKER, Message, message


@message(108, to_scheduler=(WORKER,))
class EnvironmentState(Message):
    """The worker starts preparing an environment and returns its tasks meanwhile, or accepts its tasks again."""

    environment: f.Id
    accepts: bool
    text: str = ""  # display text: current step of the preparation
