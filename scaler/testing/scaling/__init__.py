"""Scaling policies compared in simulated time: real policies, the real scheduler core, the real reconciler.

Units, their start-up times and their ends are simulated, and so are the tasks. What a policy costs and brings is
counted: makespan, unit-seconds paid, overshoot, changes of direction, tasks lost or rerun because units were stopped.

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
