"""Runs workers on EC2 instances. Instances outlive their manager and shut down when their agent exits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from scaler.config.setting import Setting
from scaler.config.values import Name, Names, Range, length, matching
from scaler.config.worker_managers import FAR_WORKERS, WorkerManagerConfig
from scaler.plugins import WorkerManagerType
from scaler.worker_manager.aws import BUCKET_NAME, InstallingSettings

TYPE = WorkerManagerType(
    backend="scaler.worker_manager.aws_ec2.backend:Ec2Backend",
    settings="scaler.worker_manager.aws_ec2:AwsEc2Config",
    provision="scaler.worker_manager.aws_ec2.setup:provision",
)
_CPUS = {"nano": 1, "micro": 1, "small": 1, "medium": 1, "large": 2}
_IMAGE = matching(r"ami-[0-9a-f]{8,17}", "must be the id of an image, such as ami-0123456789abcdef0")
_TEMPLATE = matching(r"[a-zA-Z0-9().\-/_]{3,110}", "must have 3 to 110 letters, digits and ( ) . - / _")


def cpus_of(instance_type: str) -> int:
    """Return the vCPUs implied by a type's name (8 for m7i.2xlarge), 0 if unknown. Underestimates some small types."""
    size = instance_type.partition(".")[2]
    if size.endswith("xlarge") and re.fullmatch(r"\d*", count := size.removesuffix("xlarge")):
        return 4 * int(count or 1)
    return _CPUS.get(size, 0)


@dataclass(frozen=True, kw_only=True)
class AwsEc2Config(WorkerManagerConfig, InstallingSettings):
    """Worker manager aws_ec2: EC2 instances, on demand or spot."""

    note = FAR_WORKERS
    setup_defaults: ClassVar = {**WorkerManagerConfig.setup_defaults}

    type: Literal["aws_ec2"] = "aws_ec2"
    ec2_image: Annotated[str, _IMAGE, Setting(metavar="AMI")]
    """Linux image for the instances."""
    s3_bucket: Annotated[str, Setting(default_text="none", metavar="BUCKET"), BUCKET_NAME] = ""
    """Bucket from which instances without ec2_python install this version of scaler. `setup` creates it."""
    ec2_instance_types: Annotated[Names, length(1, 50), Setting(metavar="TYPE")] = ("m7i.xlarge",)
    """Acceptable instance types. EC2 provides the cheapest available type. More types make spot capacity easier to
    get."""
    ec2_subnets: Annotated[Names, length(0, 16), Setting(default_text="the default VPC's", metavar="SUBNET")] = ()
    """Subnets for the instances, one per zone. The scheduler must be reachable from each."""
    ec2_security_groups: Annotated[Names, length(0, 5), Setting(default_text="the VPC's default", metavar="GROUP")] = ()
    """Security groups for the instances."""
    ec2_purchase: Literal["on-demand", "spot"] = "on-demand"
    """spot is cheaper, but EC2 may reclaim the instances with two minutes' notice."""
    ec2_slots: Annotated[int, Range(ge=0, le=1024), Setting(default_text="one per vCPU", metavar="COUNT")] = 0
    """Workers per instance, regardless of its type."""
    ec2_launch_template: Annotated[str, _TEMPLATE, Setting(metavar="NAME")] = "scaler-worker"
    """Launch template. `setup` creates it, and the manager adds a version when its settings change."""
    ec2_key_name: Annotated[Name | None, Setting(default_text="none", metavar="NAME")] = None
    """Key pair for ssh access to the instances."""
    ec2_volume_gigabytes: Annotated[int, Range(ge=0, le=16384), Setting(default_text="the image's", metavar="GB")] = 0
    """Size of the root volume."""
    ec2_root_device: Annotated[Name, Setting(metavar="DEVICE")] = "/dev/xvda"
    """Device name of the image's root volume, which ec2_volume_gigabytes resizes."""
    ec2_setup: Annotated[str, Setting(default_text="none", metavar="COMMANDS")] = ""
    """Shell commands to run as root on each instance before its worker starts."""
    ec2_python: Annotated[Name | None, Setting(default_text="installed by uv", metavar="PATH")] = None
    """Python in the image with this version of scaler, and with boto3 if the cluster uses keys. Default: instances
    install scaler from s3_bucket."""

    def check(self) -> None:
        super().check()
        unknown = [name for name in self.ec2_instance_types if not cpus_of(name)]
        if unknown and not self.ec2_slots:
            raise ValueError(f"ec2_instance_types: the vCPUs of {', '.join(unknown)} are unknown: set ec2_slots")

    @property
    def is_installed(self) -> bool:
        return self.ec2_python is None and bool(self.s3_bucket)

    @property
    def slots_by_type(self) -> dict[str, int]:
        return {name: self.ec2_slots or cpus_of(name) for name in self.ec2_instance_types}
