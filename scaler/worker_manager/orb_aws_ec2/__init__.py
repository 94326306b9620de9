"""Runs workers on EC2 machines from an ORB (FINOS Open Resource Broker) template, which one manager uses
exclusively."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from scaler.config.setting import Setting
from scaler.config.values import Name, Names, Range
from scaler.config.worker_managers import FAR_WORKERS, WorkerManagerConfig
from scaler.plugins import WorkerManagerType
from scaler.worker_manager.aws import AwsSettings

TYPE = WorkerManagerType(
    backend="scaler.worker_manager.orb_aws_ec2.backend:OrbBackend",
    settings="scaler.worker_manager.orb_aws_ec2:OrbAwsEc2Config",
)


@dataclass(frozen=True, kw_only=True)
class OrbAwsEc2Config(WorkerManagerConfig, AwsSettings):
    """Worker manager orb_aws_ec2: EC2 machines from the Open Resource Broker."""

    note = FAR_WORKERS

    type: Literal["orb_aws_ec2"] = "orb_aws_ec2"
    orb_template: Annotated[Name, Setting(metavar="NAME")]
    """ORB template used only by this manager, which overwrites its user data."""
    orb_slots: Annotated[int, Range(ge=1, le=1024), Setting(metavar="COUNT")] = 1
    """Workers per machine; usually the number of CPUs of the template's machine types."""
    orb_config: Annotated[Name | None, Setting(default_text="written by `orb init`", metavar="PATH")] = None
    """Path of ORB's config.json."""
    orb_setup: Annotated[Names, Setting(metavar="COMMAND")] = ()
    """Shell commands to run as root on each machine before its worker starts, such as installing scaler."""
    orb_python: Annotated[Name, Setting(metavar="PATH")] = "python3"
    """Python with scaler on the machines."""
