"""Compatible versions, and the texts of refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaler.net.versions import check_versions, own_hello
from scaler.protocol.messages import PROTOCOL_VERSION, RefusalReason, Role


@pytest.mark.parametrize("role", [Role.CLIENT, Role.MONITOR])
def test_all_implementations_speak_the_same_protocol(role: Role) -> None:
    refused = check_versions(replace(own_hello(role), protocol_version=99, hostname="far-away"))
    assert refused is not None
    assert refused.reason is RefusalReason.VERSION
    assert "far-away" in refused.text
    assert "protocol 99" in refused.text
    assert f"protocol {PROTOCOL_VERSION}" in refused.text


@pytest.mark.parametrize("role", [Role.CLIENT, Role.WORKER])
def test_peers_sharing_code_need_the_same_python_and_cloudpickle(role: Role) -> None:
    python = check_versions(replace(own_hello(role), python_version="3.99"))
    assert python is not None
    assert "Python 3.99" in python.text
    cloudpickle = check_versions(replace(own_hello(role), cloudpickle_version="1.0.0"))
    assert cloudpickle is not None
    assert "cloudpickle 1.0.0" in cloudpickle.text


def test_client_in_another_language_has_no_python_version() -> None:
    neither = replace(own_hello(Role.CLIENT), python_version="", cloudpickle_version="")
    assert check_versions(neither) is None
    assert check_versions(replace(neither, role=Role.WORKER)) is not None
    assert check_versions(replace(neither, cloudpickle_version="1.0.0")) is not None


@pytest.mark.parametrize("role", [Role.MANAGER, Role.SCHEDULER])
def test_peers_not_sharing_code_may_run_another_python(role: Role) -> None:
    assert check_versions(replace(own_hello(role), python_version="3.99", cloudpickle_version="1.0.0")) is None


def test_patch_version_does_not_matter() -> None:
    hello = own_hello(Role.CLIENT)
    assert check_versions(replace(hello, python_version=hello.python_version + ".42")) is None
