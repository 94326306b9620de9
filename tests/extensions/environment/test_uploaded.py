"""Archives of uploaded modules: their content, and imports from them."""

from __future__ import annotations

import importlib
import sys
import traceback
import zipfile
from collections.abc import Iterator
from importlib.resources import files as resource_files
from pathlib import Path

import pytest

from scaler.errors import UsageError
from scaler.extensions.environment import upload
from scaler.extensions.environment.upload import merged, packed, read_upload, unpacked
from scaler.extensions.environment.uploaded import UploadedModules


@pytest.fixture
def modules() -> Iterator[UploadedModules]:
    """Yield the import function of this process, and remove its imports afterwards."""
    modules = UploadedModules()
    yield modules
    modules.use(b"")


def package(folder: Path, version: int) -> Path:
    """Create a package of a module, a subpackage without __init__.py, and a data file."""
    path = folder / "uploadedpackage"
    (path / "inner").mkdir(parents=True, exist_ok=True)
    (path / "__init__.py").write_text(f"VERSION = {version}\n")
    (path / "inner" / "deep.py").write_text("from uploadedpackage import VERSION\n\ndef fail():\n    1 / 0\n")
    (path / "table.txt").write_text(f"table {version}")
    (path / "__pycache__").mkdir(exist_ok=True)
    (path / "__pycache__" / "x.pyc").write_bytes(b"")
    (path / ".hidden").write_text("secret")
    return path


def test_package_is_imported_with_its_submodules_and_siblings(modules: UploadedModules, tmp_path: Path) -> None:
    data = packed(read_upload(package(tmp_path, 1)))
    assert not any("pycache" in name or "hidden" in name for name in unpacked(data))
    modules.use(b"one", lambda: data)
    deep = importlib.import_module("uploadedpackage.inner.deep")
    assert (deep.VERSION, deep.__file__) == (1, "/uploaded/uploadedpackage/inner/deep.py")
    assert resource_files("uploadedpackage").joinpath("table.txt").read_text() == "table 1"
    with pytest.raises(ZeroDivisionError) as error:
        deep.fail()
    assert "1 / 0" in "".join(traceback.format_exception(error.value))
    modules.use(b"")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("uploadedpackage")


def test_each_archive_keeps_its_own_modules(modules: UploadedModules, tmp_path: Path) -> None:
    first, second = (packed(read_upload(package(tmp_path, version))) for version in (1, 2))
    modules.use(b"one", lambda: first)
    one = importlib.import_module("uploadedpackage")
    modules.use(b"two", lambda: second)
    assert importlib.import_module("uploadedpackage").VERSION == 2
    modules.use(b"one", lambda: pytest.fail("it is known"))
    assert importlib.import_module("uploadedpackage") is one
    modules.forget(b"one")
    assert "uploadedpackage" not in sys.modules
    assert (modules.active, modules.data) == (b"", b"")


def test_upload_hides_an_installed_module_temporarily(
    modules: UploadedModules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, uploaded = tmp_path / "installed", tmp_path / "uploaded"
    for folder, value in ((installed, "old"), (uploaded, "new")):
        folder.mkdir()
        (folder / "uploadedmodule.py").write_text(f"VALUE = {value!r}\n")
    monkeypatch.syspath_prepend(str(installed))
    before = importlib.import_module("uploadedmodule")
    data = packed(read_upload(uploaded / "uploadedmodule.py"))
    modules.use(b"one", lambda: data)
    assert importlib.import_module("uploadedmodule").VALUE == "new"
    modules.use(b"")
    assert importlib.import_module("uploadedmodule") is before
    monkeypatch.delitem(sys.modules, "uploadedmodule")


def test_later_upload_replaces_only_modules_of_the_same_name(tmp_path: Path) -> None:
    module = tmp_path / "uploadedmodule.py"
    module.write_text("A = 1\n")
    both = merged(read_upload(module), read_upload(package(tmp_path, 1)))
    (tmp_path / "uploadedpackage" / "table.txt").unlink()
    again = merged(both, read_upload(tmp_path / "uploadedpackage"))
    assert set(both) - set(again) == {"uploadedpackage/table.txt"}
    assert unpacked(packed(again)) == again
    assert packed(again) == packed(dict(sorted(again.items(), reverse=True)))


def test_wheel_can_be_imported_without_its_metadata(modules: UploadedModules, tmp_path: Path) -> None:
    wheel = tmp_path / "uploadedmodule-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("uploadedmodule.py", "A = 3\n")
        archive.writestr("uploadedmodule-1.dist-info/METADATA", "Name: uploadedmodule\n")
    data = packed(read_upload(wheel))
    assert list(unpacked(data)) == ["uploadedmodule.py"]
    modules.use(b"one", lambda: data)
    assert importlib.import_module("uploadedmodule").A == 3


@pytest.mark.parametrize(
    ("name", "members", "text"),
    [
        ("missing.py", {}, "cannot read"),
        ("notes.txt", {"": "x"}, "is not a module, package, or wheel"),
        ("json.py", {"": "x"}, "would replace json, which workers need"),
        ("not-a-name.py", {"": "x"}, "no importable module"),
        ("a-1-py3-none-any.whl", {"": "x"}, "cannot read the wheel"),
        ("fast", {"__init__.py": "", "core.so": ""}, r"has compiled code \(fast/core.so\)"),
        ("empty", {"data.txt": ""}, "no importable module"),
    ],
)
def test_rejects_a_failing_upload_with_the_reason(
    name: str, members: dict[str, str], text: str, tmp_path: Path
) -> None:
    for member, content in members.items():
        path = tmp_path / name / member if member else tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    with pytest.raises(UsageError, match=text):
        read_upload(tmp_path / name)


def test_files_too_large_in_total_are_refused_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "MAX_UPLOAD_BYTES", 50)
    path = package(tmp_path, 1)
    with pytest.raises(UsageError, match="uploads are limited to 50: send data with send_object"):
        read_upload(path)
    with pytest.raises(UsageError, match="the uploaded files have 60 bytes"):
        packed({"a.py": bytes(60)})
