"""Modules uploaded by clients: zip archives in memory, from which this process imports them.

Only the modules of the current task's archive are importable. They hide any installed or otherwise uploaded modules
with the same top-level names.
"""

from __future__ import annotations

import importlib.abc
import io
import sys
import zipfile
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType, SimpleNamespace
from typing import Any, cast

from scaler.errors import SerializationError

ROOT = "/uploaded/"


class UploadedModules:
    """The importable archive. Archive ids are content digests; an empty id means no archive."""

    def __init__(self) -> None:
        self.active = b""
        self.data = b""
        self._finders: dict[bytes, ArchiveFinder] = {}
        self._modules: dict[bytes, dict[str, ModuleType]] = {}
        """Modules imported from inactive archives."""
        self._hidden: dict[str, ModuleType] = {}
        """Hidden modules whose names the active archive uses."""

    def use(self, identifier: bytes, read: Callable[[], bytes] = bytes) -> None:
        """Activate an archive. read: returns a new archive's bytes. Raises SerializationError and errors of `read`."""
        if identifier == self.active:
            return
        finder = self._finders.get(identifier)
        if identifier and finder is None:
            finder = self._finders[identifier] = ArchiveFinder(read())
        if self.active:
            before = self._finders[self.active]
            sys.meta_path.remove(before)
            self._modules[self.active] = _taken(before.roots)
            sys.modules.update(self._hidden)
        self.active, self.data, self._hidden = b"", b"", {}
        if finder is not None:
            self._hidden = _taken(finder.roots)
            sys.modules.update(self._modules.pop(identifier, {}))
            sys.meta_path.insert(0, finder)
            self.active, self.data = identifier, finder.data

    def forget(self, identifier: bytes) -> None:
        if identifier in self._finders:
            if identifier == self.active:
                self.use(b"")
            del self._finders[identifier]
            self._modules.pop(identifier, None)


def _taken(roots: frozenset[str]) -> dict[str, ModuleType]:
    """Remove and return the imported modules under these names."""
    names = [name for name in sys.modules if name.partition(".")[0] in roots]
    return {name: sys.modules.pop(name) for name in names}


class ArchiveFinder(importlib.abc.SourceLoader):
    """Finds and loads the modules of an archive. Raises SerializationError for invalid bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(data))
        except zipfile.BadZipFile as error:
            raise SerializationError(f"the uploaded modules cannot be imported: {error}") from error
        self._names = frozenset(self._archive.namelist())
        self.roots = roots_of(self._names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] not in self.roots:
            return None
        base = ROOT + fullname.replace(".", "/")
        for name, folders in ((f"{base}/__init__.py", [base]), (f"{base}.py", None)):
            if name.removeprefix(ROOT) in self._names:
                return spec_from_file_location(fullname, name, loader=self, submodule_search_locations=folders)
        if any(name.startswith(f"{base}/".removeprefix(ROOT)) for name in self._names):
            spec = ModuleSpec(fullname, None, is_package=True)  # without __init__.py
            spec.submodule_search_locations = [base]
            return spec
        return None

    def get_filename(self, fullname: str) -> str:
        return str(cast("ModuleSpec", self.find_spec(fullname, None)).origin)

    def get_data(self, path: str) -> bytes:
        try:
            return self._archive.read(path.removeprefix(ROOT))
        except KeyError as error:
            raise FileNotFoundError(path) from error

    def get_resource_reader(self, fullname: str) -> Any:
        folder = self.get_filename(fullname).removeprefix(ROOT).rpartition("/")[0]
        return SimpleNamespace(files=lambda: zipfile.Path(self._archive, f"{folder}/"))


def roots_of(names: frozenset[str]) -> frozenset[str]:
    """Return the names of the top-level modules and packages in an archive with these files."""
    tops = {name.partition("/")[0] if "/" in name else name.removesuffix(".py") for name in names}
    return frozenset(top for top in tops if top.isidentifier())
