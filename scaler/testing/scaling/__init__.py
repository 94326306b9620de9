"""Compares scaling policies in simulated time, with real policies, scheduler core, and reconciler.

Units, start-up times, failures, and tasks are simulated. Measures the makespan, the paid unit-seconds, the
overshoot, changes of direction, and tasks lost or rerun because units were stopped.

    from scaler.policy.simple import SimplePolicy
    from scaler.testing.scaling import WORKLOADS, simulate
    print(simulate(WORKLOADS[0], SimplePolicy(""), startup_seconds=60.0))
"""

from scaler.testing.scaling.competitors import AllFromTheStart, DaskAdaptive, HyperQueueAllocation, OnePerHeartbeat
from scaler.testing.scaling.workloads import MORE_WORKLOADS, WORKLOADS, Arrival, UnitPool, Workload
from scaler.testing.scaling.world import ScalingOutcome, simulate

__all__ = [
    "MORE_WORKLOADS",
    "WORKLOADS",
    "AllFromTheStart",
    "Arrival",
    "DaskAdaptive",
    "HyperQueueAllocation",
    "OnePerHeartbeat",
    "ScalingOutcome",
    "UnitPool",
    "Workload",
    "simulate",
]
