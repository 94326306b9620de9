"""Builds a wheel from the running package, for machines that need exactly this version, even if no index contains it.
Contains the imported files and the metadata of the installation, even an editable one. Equal contents yield equal
bytes, because callers cache by digest. As a program with arguments EXTRA..., prints the requirements of these
extras."""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

import scaler
from scaler.errors import UsageError
from scaler.extras import DISTRIBUTION

_ESCAPED = DISTRIBUTION.replace("-", "_")
_TAG = "py3-none-any"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # modification time of all files: the earliest that a zip archive can store
_MODE = 0o100644
_COPIED = ("METADATA", "entry_points.txt", "licenses/LICENSE", "top_level.txt")


def build_wheel(directory: Path) -> Path:
    """Write the wheel into a directory and return its path. Raises UsageError if the package is not installed."""
    installed = installation()
    info = f"{_ESCAPED}-{installed.version}.dist-info"
    path = directory / f"{_ESCAPED}-{installed.version}-{_TAG}.whl"
    record = []
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (*_package_files(), *_metadata_files(installed, info)):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
            _add(archive, name, data)
        own = f"{info}/RECORD"
        _add(archive, own, "".join([*record, f"{own},,\n"]).encode())
    return path


def installation() -> Distribution:
    """Return the metadata of the installation, not of a build. Raises UsageError if there is none."""
    found = next((each for each in distributions(name=DISTRIBUTION) if each.read_text("METADATA")), None)
    if found is None:
        raise UsageError(
            f"scaler is imported from {Path(scaler.__file__).parent} and not installed, so its dependencies are "
            "unknown and no wheel can be built from it: install it, for example with `pip install -e .`"
        )
    return found


def requirements_of(*extras: str) -> list[str]:
    from scaler.pins import of_extra  # noqa: PLC0415 (an installed dependency: a checkout alone may have no packaging)

    declared = installation().requires or ()
    found = {extra: [str(each) for each in of_extra(declared, extra)] for extra in extras}
    if missing := [extra for extra, names in found.items() if not names]:
        raise LookupError(
            f"the installation of scaler has no extra {missing[0]!r}: install it again, with pip install -e ."
        )
    return [each for names in found.values() for each in names]


def _package_files() -> Iterator[tuple[str, bytes]]:
    root = Path(scaler.__file__).parent
    names = {path.relative_to(root.parent).as_posix(): path for path in root.rglob("*") if path.is_file()}
    for name in sorted(names):
        is_own = not name.startswith("scaler/testing/")  # a separate distribution, even in a checkout
        if is_own and "__pycache__" not in name and not names[name].name.startswith("."):
            yield name, names[name].read_bytes()


def _metadata_files(installed: Distribution, info: str) -> Iterator[tuple[str, bytes]]:
    yield f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: scaler\nRoot-Is-Purelib: true\nTag: {_TAG}\n".encode()
    for name in _COPIED:
        if text := installed.read_text(name):
            yield f"{info}/{name}", text.encode()


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr = _MODE << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, data)


if __name__ == "__main__":
    sys.stdout.write("".join(f"{each}\n" for each in requirements_of(*sys.argv[1:])))
