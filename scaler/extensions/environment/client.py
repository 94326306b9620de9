"""`upload` of clients."""

from __future__ import annotations

from pathlib import Path

from scaler.client.task_calls import TaskCalls, hiding_frames_of_methods
from scaler.extensions.environment.upload import with_upload


@hiding_frames_of_methods()
class UploadCalls(TaskCalls):
    def upload(self, path: str | Path) -> None:
        """Make a module, a package, or a wheel importable in this client's tasks.

        Applies to tasks submitted from now on, and to their nested tasks. Replaces an earlier upload of the same name.

        Args:
            path: a `.py` or `.whl` file, or the directory of a package.

        Raises:
            UsageError: The path is not a module, a package, or a wheel.
        """
        self._check_open()
        self._templates.use_code(with_upload(self._templates.code, path))
