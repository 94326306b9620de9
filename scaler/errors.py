"""Every error that users can meet, by its cause.

`ScalerError` is the root. A future ends with the task's own exception, or with one of the `TaskError` classes: exactly
one named reason. Texts say what happened and what to change.
"""

from __future__ import annotations


class ScalerError(Exception):
    """Root of all errors that the platform raises by itself."""


class UsageError(ScalerError, ValueError):
    """An invalid request of the caller: the text says what to change. Commands exit with code 2."""


class ConfigError(UsageError):
    """A setting is unknown, has the wrong type, or contradicts another one."""


class UnreachableError(ScalerError, ConnectionError):
    """No answer from an address: the text has the address and the time waited."""


class RefusedError(ScalerError, ConnectionError):
    """The other side does not accept this peer: version, role or key do not fit. The text names both sides."""


class ProtocolError(ScalerError):
    """A peer sent bytes or a message that the protocol does not allow. It is dropped and counted, never trusted."""


class LimitError(ScalerError):
    """A named limit was reached; the text names it and its value."""

    may_pass = False  # the same call may succeed later by itself: a disk is full, say


class ComponentError(ScalerError, RuntimeError):
    """A process of the platform failed: the text says which, how it ended, and what it wrote last."""


class ClientClosedError(ScalerError, RuntimeError):
    """The client was used after it was disconnected, or in a forked child."""


class ProtectedError(ScalerError, PermissionError, ValueError):
    """A client asked a protected scheduler to shut down."""


class SerializationError(ScalerError, TypeError):
    """Something cannot be turned into bytes or back; the text names the argument, function or result."""


class TaskError(ScalerError):
    """A task ended without a value for a reason that is not its own exception."""


class TaskTimeoutError(TaskError, TimeoutError):
    """The task ran longer than its time limit and was ended."""


class TaskRejectedError(TaskError):
    """The scheduler did not accept the task: a limit, named in the text, was reached."""


class WorkerLostError(TaskError):
    """The workers that ran the task were lost, up to the limit of retries."""


class ProcessorDiedError(TaskError):
    """The processes that ran the task died, up to the limit of retries; the text has signal or exit code."""


class MemoryLimitError(TaskError, MemoryError):
    """The task took more memory than its worker allows or its machine has; the text has the limit and the peak."""


class PoisonTaskError(TaskError):
    """The task took several workers down, one after another, and is not tried again."""


class ObjectLostError(TaskError):
    """An object that the task needs, or its result, is no longer in the object storage."""

    object_id = b""  # the object, where the object storage was asked for it


class SchedulerLostError(TaskError):
    """The scheduler was gone for longer than ten leases of the client."""


class ClientDisconnectedError(TaskError):
    """The client was disconnected before the task ended."""


class RemoteTraceback(Exception):  # noqa: N818 (it is shown to users under this name, as in the standard library)
    """Carries the traceback text of a remote exception as its `__cause__`, so that it is shown with it.

    where: the item of a map or the node of a graph that it is about, or empty.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.where = ""

    def __str__(self) -> str:
        import linecache  # noqa: PLC0415 (most processes never show one)
        import re  # noqa: PLC0415

        def with_source(frame: re.Match[str]) -> str:
            # The worker does not have the source of a notebook's cell; the notebook does.
            line = linecache.getline(frame[1], int(frame[2])).strip()
            return f"{frame[0]}    {line}\n" if line else frame[0]

        text = re.sub(r'^  File "(.+)", line (\d+), in .+\n(?!    )', with_source, self.text, flags=re.MULTILINE)
        return f"{self.where}\n\n{text.rstrip() or '(no frames of user code: built-in code or Scaler raised it)'}"


class RemoteError(TaskError):
    """Stands for a remote exception that could not be pickled or loaded here; keeps its type name and text."""

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(f"{type_name}: {text}")
        self.type_name = type_name
        self.text = text

    def __reduce__(self) -> tuple[type[RemoteError], tuple[str, str]]:
        return RemoteError, (self.type_name, self.text)


def nearest(name: str, known: list[str]) -> str:
    """Return a question that names the nearest of the known names, or a list of them all when none is near."""
    from difflib import get_close_matches  # noqa: PLC0415 (most processes never need it)

    if found := get_close_matches(name, known, n=1):
        return f"; did you mean {found[0]!r}?"
    return f"; known are {', '.join(known)}"
