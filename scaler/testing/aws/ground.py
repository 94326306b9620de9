"""What emulated containers stand on: a folder, the programs of their image, and a process that outlives all."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import scaler

MARK_VARIABLE = "SCALER_EMULATED_CONTAINERS"
"""By its value in their environment the processes of all containers of a `Containers` are found at its end."""

_REAPER = """
import shutil, sys
from scaler.processes import end_processes_with
sys.stdin.read()
end_processes_with([sys.argv[1]])
shutil.rmtree(sys.argv[2], ignore_errors=True)
"""


class Ground:
    """What containers stand on: their folder, the programs of their image, and a process that outlives this one to
    end them, whichever way it went.
    """

    def __init__(self, mark: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="scaler-containers-")
        home = Path(self._folder.name)
        sources = str(Path(scaler.__file__).parent.parent)
        self.environment = {
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "PATH": f"{_put_programs(home / 'bin')}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": sources,
            "PYTHONUNBUFFERED": "1",
        }
        self._reaper = subprocess.Popen(
            [sys.executable, "-c", _REAPER, f"{MARK_VARIABLE}={mark}", str(home)],
            stdin=subprocess.PIPE,
            env={"PYTHONPATH": sources},
            start_new_session=True,
        )

    def new_folder(self) -> Path:
        """Make an empty folder for a container."""
        folder = Path(self._folder.name, uuid.uuid4().hex)
        folder.mkdir()
        return folder

    def close(self) -> None:
        """Remove everything."""
        self._reaper.kill()
        self._reaper.communicate()
        self._folder.cleanup()


def _put_programs(folder: Path) -> Path:
    """Write what stands for an image's programs: Python with scaler in it, and a pip that need not install anything."""
    folder.mkdir()
    python = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    pip = "#!/bin/sh\necho 'pip: the emulated image has everything'\n"
    for name, text in (("python", python), ("python3", python), ("pip", pip), ("pip3", pip)):
        program = folder / name
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
    return folder
