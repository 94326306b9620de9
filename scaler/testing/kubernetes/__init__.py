"""A Kubernetes cluster on loopback for real clients. Pods are local processes, and faults follow a script."""

from __future__ import annotations

from scaler.testing.aws.faults import Error, LoseReply, Slow, Throttle
from scaler.testing.kubernetes.core import ClusterNode, ClusterTimes
from scaler.testing.kubernetes.server import KubernetesEmulator

__all__ = ["ClusterNode", "ClusterTimes", "Error", "KubernetesEmulator", "LoseReply", "Slow", "Throttle"]
