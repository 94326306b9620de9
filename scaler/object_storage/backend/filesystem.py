"""A folder of any fsspec filesystem, such as a shared directory or another cloud's object store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from scaler.errors import ObjectLostError, ScalerError, UnreachableError, UsageError
from scaler.extras import require

_OWN_MEMORY = {"memory"}
"""Filesystems private to one process, which no other store could read."""
_LOCAL = {"file", "local"}


class FilesystemFolder:
    """See `ObjectFolder`. fsspec takes credentials from the environment and its own configuration."""

    def __init__(self, url: str) -> None:
        require("fsspec", "fsspec", f"backend = {url!r}")
        from fsspec.core import url_to_fs  # noqa: PLC0415 (only where there is such a backend)

        self._url = url
        scheme = url.partition("://")[0]
        if scheme in _OWN_MEMORY:
            raise UsageError(
                f"backend = {url!r}: other processes cannot read it: use a filesystem that the hosts share"
            )
        try:
            self._files, self._root = url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            text = f"backend = {url!r}: {error}: install the fsspec driver for {scheme}, or use another URL"
            raise UsageError(text) from None
        except Exception as error:  # noqa: BLE001 (each filesystem has errors of its own)
            raise UnreachableError(f"{url}: {error}") from None
        self._is_local = scheme in _LOCAL

    def put(self, name: str, content: Iterable[memoryview]) -> None:
        path = f"{self._root}/{name}"
        with self._telling("write"):
            folder = path.rpartition("/")[0]
            self._files.makedirs(folder, exist_ok=True)
            if self._is_local:
                Path(folder).chmod(0o700)
            # On disk, a file is visible before it is complete, unlike objects elsewhere.
            first = f"{path}.part" if self._is_local else path
            try:
                with self._files.open(first, "wb") as file:
                    for each in content:
                        file.write(each)
                if self._is_local:
                    Path(first).replace(path)
            except BaseException:
                with suppress(Exception):
                    self._files.rm_file(first)
                raise

    def read(self, name: str, start: int, end: int | None = None) -> bytes:
        with self._telling("read"):
            return bytes(self._files.cat_file(f"{self._root}/{name}", start=start, end=end))

    def delete(self, names: Sequence[str]) -> None:
        with self._telling("delete"):
            for name in names:
                with suppress(FileNotFoundError):
                    self._files.rm_file(f"{self._root}/{name}")
            for folder in {name.rpartition("/")[0] for name in names}:
                with suppress(Exception):  # not empty, or the filesystem has no real folders
                    self._files.rmdir(f"{self._root}/{folder}".rstrip("/"))

    def folders(self) -> list[str]:
        with self._telling("list"):
            if not self._files.exists(self._root):
                return []
            found = self._files.ls(self._root, detail=True)
            return [each["name"].rstrip("/").rpartition("/")[2] for each in found if each["type"] == "directory"]

    def names(self, folder: str) -> list[str]:
        with self._telling("list"):
            found = self._files.find(f"{self._root}/{folder}")
            return [f"{folder}/{each.rpartition('/')[2]}" for each in found]

    @contextmanager
    def _telling(self, action: str) -> Iterator[None]:
        try:
            yield
        except ScalerError:
            raise
        except FileNotFoundError:
            if action == "read":
                raise ObjectLostError(f"{self._url} does not have it") from None
            raise UnreachableError(f"cannot {action} at {self._url}: no such folder") from None
        except Exception as error:  # noqa: BLE001 (each filesystem has errors of its own)
            raise UnreachableError(f"cannot {action} at {self._url}: {error}") from None
