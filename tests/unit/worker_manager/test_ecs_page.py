"""docs/aws_raw_ecs.md, config/aws_raw_ecs.toml, and docker/worker.Dockerfile match the code."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from scaler.config.commands import launcher_config
from scaler.config.load import read_file
from scaler.config.setting import describe
from scaler.worker_manager.aws.resources import execution_statements
from scaler.worker_manager.aws_raw_ecs import AwsRawEcsConfig
from scaler.worker_manager.backend import WORKER_COMMAND

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/aws_raw_ecs.md").read_text()
MANAGER, SETUP, EXECUTION = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
CALL = re.compile(r'(.*)(?:(?:call|items|find)\(\s*"([A-Z]\w+)"|partial\(\s*self\.call,\s*"([A-Z]\w+)")')


def actions(policy: dict[str, Any]) -> set[str]:
    found: set[str] = set()
    for statement in policy["Statement"]:
        action = statement["Action"]
        found |= {action} if isinstance(action, str) else set(action)
    return found


def calls(*modules: str) -> set[str]:
    """Return the operations that modules call, as permissions."""
    found: set[str] = set()
    for name in modules:
        module = importlib.import_module(f"scaler.worker_manager.{name}")
        for member in vars(module).values():
            if getattr(member, "__module__", "") != module.__name__ or not hasattr(member, "__qualname__"):
                continue
            # A resource has its service; all other calls are to ECS, or name their service in the same line.
            for line, *operations in CALL.findall(inspect.getsource(member)):
                of_line = re.search(r'client\("(\w+)"\)|\b(?=s3\.)(\w+)', line)
                service = of_line[1] or of_line[2] if of_line else getattr(member, "service", "ecs")
                found.add(f"{service}:{''.join(operations)}")
    assert found
    return found


def test_managers_policy_allows_every_call_of_the_manager() -> None:
    called = calls("aws_raw_ecs.backend")
    assert called | {"ecs:TagResource", "iam:PassRole"} == actions(MANAGER)


def test_setup_policy_allows_every_call_of_setup() -> None:
    called = calls("aws_raw_ecs.setup", "aws_raw_ecs.backend", "aws.setup", "aws.resources", "aws.package") - {
        *("ecs:RunTask", "ecs:StopTask", "ecs:ListTasks", "ecs:DescribeTasks"),  # of the manager
        "iam:AttachRolePolicy",
        "s3:HeadObject",
        *("s3:HeadBucket", "s3:ListObjectsV2", "s3:DeleteObjects"),
    }
    called = {each for each in called if "InstanceProfile" not in each}  # of instances
    beside = {"ecs:TagResource", "logs:TagResource", "iam:TagRole", "iam:PassRole", "iam:CreateServiceLinkedRole"}
    beside |= {
        "ssm:AddTagsToResource",
        "s3:GetObject",
        "s3:ListBucket",
        "s3:DeleteObject",
    }  # heads and lists go by these
    assert called | beside == actions(SETUP)


def test_execution_role_is_the_one_that_setup_creates() -> None:
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/scaler-worker:1"
    group = "arn:aws:logs:us-east-1:123456789012:log-group:/scaler/scaler-task-definition"
    credential = "arn:aws:ssm:us-east-1:123456789012:parameter/scaler/ecs/scaler-task-definition"
    assert EXECUTION["Statement"] == execution_statements(image, group, "aws", credential)
    assert EXECUTION["Statement"][:1] == execution_statements("other.example/worker:1", group, "aws")


def test_page_names_only_existing_settings() -> None:
    known = set(describe(AwsRawEcsConfig))
    named = {name for name in re.findall(r"`((?:ecs|aws)_[a-z_]+)`", PAGE) if name not in ("aws_raw_ecs", "aws_hpc")}
    assert named <= known
    assert {name for name in known if name.startswith("ecs_")} <= named


def test_file_starts_a_scheduler_a_storage_and_a_manager() -> None:
    config = launcher_config(read_file(str(ROOT / "config/aws_raw_ecs.toml")), {})
    [manager] = config.worker_managers
    assert isinstance(manager, AwsRawEcsConfig)
    assert manager.worker_scheduler_address != manager.scheduler_address
    assert config.object_storage_server is not None


def test_image_runs_a_worker_and_consists_of_existing_files() -> None:
    text = (ROOT / "docker/worker.Dockerfile").read_text()
    assert "\nFROM public.ecr.aws/docker/library/python:${PYTHON_VERSION}-slim\n" in text
    assert f"CMD {json.dumps(list(WORKER_COMMAND))}" in text
    for files in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in files.split())


def test_image_reads_its_requirements_with_only_packaging_installed() -> None:
    program = (
        "import sys; old = {*sys.modules}; from scaler.worker_manager import wheel; wheel.requirements_of('worker');"
        "print(*{*sys.modules} - old)"
    )
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert {name.partition(".")[0] for name in printed.split()} - sys.stdlib_module_names == {"packaging", "scaler"}
    assert "install --no-cache-dir packaging" in (ROOT / "docker/worker.Dockerfile").read_text()
