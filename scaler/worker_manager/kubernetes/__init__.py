"""Runs workers as Kubernetes pods. Pods outlive their manager, and a new manager finds them by a label."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from scaler.config.setting import Setting
from scaler.config.values import MAX_COUNT, Count, CountOrNone, Name, Range, must
from scaler.config.worker_managers import FAR_WORKERS, WorkerManagerConfig
from scaler.extras import require
from scaler.plugins import WorkerManagerType

TYPE = WorkerManagerType(
    backend="scaler.worker_manager.kubernetes.backend:KubernetesBackend",
    settings="scaler.worker_manager.kubernetes:KubernetesConfig",
)
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(k|M|G|T|Ki|Mi|Gi|Ti)?")


def bytes_of(quantity: str) -> int:
    if (found := _QUANTITY.fullmatch(quantity)) is None:
        raise ValueError(f"must be a Kubernetes quantity such as 512Mi, 4Gi, or 2G, not {quantity!r}")
    return int(float(found[1]) * _UNITS[found[2] or ""])


Quantity = Annotated[str, must(lambda value: bytes_of(value) >= 1, "must be more than 0")]


@dataclass(frozen=True, kw_only=True)
class KubernetesConfig(WorkerManagerConfig):
    """Worker manager kubernetes: pods in a Kubernetes cluster."""

    note = FAR_WORKERS

    type: Literal["kubernetes"] = "kubernetes"
    k8s_image: Annotated[
        Name | None, Setting(default_text="required unless k8s_pod_template names an image", metavar="IMAGE")
    ] = None
    """Worker image with this version of scaler, built from docker/worker.Dockerfile."""
    k8s_namespace: Annotated[Name | None, Setting(default_text="the context's", metavar="NAME")] = None
    """Namespace for the pods."""
    k8s_kubeconfig: Annotated[
        Name | None, Setting(default_text="KUBECONFIG, ~/.kube/config, or the service account", metavar="FILE")
    ] = None
    """Kubeconfig file. Without one, a manager that runs in a pod uses the pod's service account."""
    k8s_context: Annotated[Name | None, Setting(default_text="the current one", metavar="NAME")] = None
    """Context in the kubeconfig."""
    k8s_cpu: Annotated[float, Range(gt=0, le=MAX_COUNT), Setting(metavar="CPUS")] = 1.0
    """CPU request of a pod."""
    k8s_memory: Annotated[Quantity, Setting(metavar="QUANTITY")] = "2Gi"
    """Memory request and limit of a pod, shared by all its workers."""
    k8s_slots: Annotated[CountOrNone, Setting(default_text="0: k8s_cpu, at least 1", metavar="COUNT")] = 0
    """Workers per pod."""
    k8s_gpus: Annotated[CountOrNone, Setting(metavar="COUNT")] = 0
    """GPUs per pod. Workers offer them as the gpu capability unless per_worker_capabilities sets gpu."""
    k8s_gpu_resource: Annotated[Name, Setting(metavar="NAME")] = "nvidia.com/gpu"
    """Kubernetes resource name of a GPU."""
    k8s_pod_template: Annotated[str | None, Setting(default_text="none", metavar="FILE")] = None
    """YAML file with a pod template, for fields without a setting, such as nodeSelector, tolerations, imagePullSecrets,
    and volumes."""
    k8s_stop_seconds: Annotated[Count, Range(ge=10), Setting(metavar="SECONDS")] = 60
    """Time from SIGTERM to SIGKILL when a pod is stopped, evicted, or preempted. Running tasks get 5 seconds less."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.offer_gpus(self.k8s_gpus)

    def check(self) -> None:
        super().check()
        require("kubernetes", "a worker manager of the type kubernetes")
