"""`Client.upload`: the user's modules, packages, and wheels, as one archive sent with the tasks."""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from scaler.client.task_calls import TaskCalls, hiding_frames_of_methods
from scaler.errors import UsageError
from scaler.extensions.environment.uploaded import roots_of
from scaler.paths import local_path

MAX_UPLOAD_BYTES = 256 * 1024 * 1024
"""Limit (bytes) for all files together, because each processor keeps them in memory."""
_COMPILED = (".so", ".pyd", ".dylib")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Modification time of all files: fixed, so equal contents yield equal archives."""
_OURS = frozenset({"scaler", "cloudpickle"})

Files = Mapping[str, bytes]
"""Contents by path relative to the import directory, with slashes."""


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
        files, before = read_upload(path), self._templates.code
        self._templates.use_code(packed(merged(unpacked(before), files) if before else files))


def read_upload(path: str | Path) -> Files:
    source = local_path(path)
    try:
        if source.is_dir():
            files = _of_folder(source)
        elif source.suffix == ".whl":
            files = _of_wheel(source)
        elif source.suffix == ".py":
            files = {source.name: source.read_bytes()}
        else:
            raise UsageError(
                f"{str(path)!r} is not a module, package, or wheel: give a .py or .whl file, or a directory"
            )
    except OSError as error:
        raise UsageError(f"cannot read {error.filename or str(path)!r}: {error.strerror}") from None
    return _checked(str(path), files)


def merged(before: Files, files: Files) -> Files:
    """Merge the files of two uploads. Modules of the second replace modules of the same name."""
    new = roots_of(frozenset(files))
    return {name: data for name, data in before.items() if not roots_of(frozenset([name])) & new} | dict(files)


def packed(files: Files) -> bytes:
    """Return an archive that contains the files, with deterministic bytes. Raises UsageError if they are too large."""
    _check_size("the uploaded files", sum(map(len, files.values())))
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name])
    return target.getvalue()


def unpacked(data: bytes) -> Files:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def _of_folder(source: Path) -> dict[str, bytes]:
    found = {each.relative_to(source): each for each in sorted(source.rglob("*")) if each.is_file()}
    hidden = ".", "__pycache__"
    paths = {short: each for short, each in found.items() if not any(part.startswith(hidden) for part in short.parts)}
    _check_size(repr(str(source)), sum(each.stat().st_size for each in paths.values()))
    return {f"{source.resolve().name}/{short.as_posix()}": each.read_bytes() for short, each in paths.items()}


def _of_wheel(source: Path) -> dict[str, bytes]:
    try:
        files = dict(unpacked(source.read_bytes()))
    except zipfile.BadZipFile as error:
        raise UsageError(f"cannot read the wheel {str(source)!r}: {error}") from None
    return {name: data for name, data in files.items() if not name.split("/")[0].endswith((".dist-info", ".data"))}


def _check_size(what: str, size: int) -> None:
    if size > MAX_UPLOAD_BYTES:
        raise UsageError(
            f"{what} have {size:,} bytes, but uploads are limited to {MAX_UPLOAD_BYTES:,}: send data with send_object "
            "instead"
        )


def _checked(path: str, files: Files) -> Files:
    compiled = next((name for name in files if name.endswith(_COMPILED)), "")
    if compiled:
        raise UsageError(f"{path!r} has compiled code ({compiled}), which cannot be imported from memory: install it")
    roots = roots_of(frozenset(files))
    if not roots or not any(name.endswith(".py") for name in files):
        raise UsageError(f"{path!r} has no importable module")
    if taken := sorted(roots & (_OURS | sys.stdlib_module_names)):
        raise UsageError(f"{path!r} would replace {taken[0]}, which workers need: choose another name")
    return files
