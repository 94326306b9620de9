"""All errors that users can encounter, with `ScalerError` as the root.

A future ends with the task's own exception or with one of the `TaskError` classes. Messages state the problem and the
remedy.

Example:
    ```python
    try:
        print(client.submit(simulate, seed).result())
    except WorkerLostError as error:                 # its worker was lost more often than `losses` allows
        print(error)
    except ValueError:                               # raised by simulate itself
        print("bad seed")
    ```
"""

from __future__ import annotations


class ScalerError(Exception):
    """Root of all errors that Scaler raises."""


class UsageError(ScalerError, ValueError):
    """An invalid request. The message states the remedy. Commands exit with code 2."""


class ConfigError(UsageError):
    """A setting is unknown, has the wrong type, or contradicts another setting."""


class UnreachableError(ScalerError, ConnectionError):
    """No answer from an address. The message contains the address and the time waited."""


class RefusedError(ScalerError, ConnectionError):
    """The server refused this peer because of its version, role, or key. The message names both sides."""


class ProtocolError(ScalerError):
    """A peer sent bytes or a message that violates the protocol. The data is dropped and counted."""


class LimitError(ScalerError):
    """A limit was reached. The message contains the limit's name and value."""

    may_pass = False  # the same call may succeed later, for example when a disk is no longer full


class ComponentError(ScalerError, RuntimeError):
    """A Scaler process failed. The message contains the process's name, exit status, and last output."""


class ClientClosedError(ScalerError, RuntimeError):
    """The client was used after it was disconnected, or in a forked child."""


class ProtectedError(ScalerError, PermissionError, ValueError):
    """A client asked a protected scheduler to shut down."""


class SerializationError(ScalerError, TypeError):
    """An argument, function, or result, named in the message, cannot be serialized or deserialized."""


class TaskError(ScalerError):
    """A task ended without a value for a reason other than its own exception."""


class TaskTimeoutError(TaskError, TimeoutError):
    """The task exceeded its time limit and was killed."""


class TaskRejectedError(TaskError):
    """The scheduler rejected the task because a limit, named in the message, was reached."""


class WorkerLostError(TaskError):
    """Workers that ran the task were lost more often than its retries allow."""


class ProcessorDiedError(TaskError):
    """Processes that ran the task died more often than its retries allow. The message contains the signal or exit
    code."""


class MemoryLimitError(TaskError, MemoryError):
    """The task exceeded the memory of its worker or machine. The message contains the limit and the peak."""


class PoisonTaskError(TaskError):
    """The task killed several workers in succession and is not retried."""


class ObjectLostError(TaskError):
    """An object that the task needs, or its result, is no longer in the object storage."""

    object_id = b""  # the missing object, if it was requested from the object storage


class SchedulerLostError(TaskError):
    """The scheduler was unreachable for more than ten leases of the client."""


class ClientDisconnectedError(TaskError):
    """The client was disconnected before the task ended."""


class RemoteTraceback(Exception):  # noqa: N818 (it is shown to users under this name, as in the standard library)
    """The traceback of a remote exception, set as the exception's `__cause__` so that both are shown together. where:
    the map item or graph node that raised the exception, or empty."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.where = ""

    def __str__(self) -> str:
        import linecache  # noqa: PLC0415 (most processes never show one)
        import re  # noqa: PLC0415

        def with_source(frame: re.Match[str]) -> str:
            # The worker does not have the source of a notebook cell, but the notebook does.
            line = linecache.getline(frame[1], int(frame[2])).strip()
            return f"{frame[0]}    {line}\n" if line else frame[0]

        text = re.sub(r'^  File "(.+)", line (\d+), in .+\n(?!    )', with_source, self.text, flags=re.MULTILINE)
        return f"{self.where}\n\n{text.rstrip() or '(no frames of user code: built-in code or Scaler raised it)'}"


class RemoteError(TaskError):
    """Replaces a remote exception that could not be pickled or loaded here. Contains its type name and text."""

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(f"{type_name}: {text}")
        self.type_name = type_name
        self.text = text

    def __reduce__(self) -> tuple[type[RemoteError], tuple[str, str]]:
        return RemoteError, (self.type_name, self.text)


def nearest(name: str, known: list[str]) -> str:
    """Return a suggestion with the nearest known name, or a list of all known names."""
    from difflib import get_close_matches  # noqa: PLC0415 (most processes never need it)

    if found := get_close_matches(name, known, n=1):
        return f"; did you mean {found[0]!r}?"
    return f"; known: {', '.join(known)}"
