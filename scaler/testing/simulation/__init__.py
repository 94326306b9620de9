"""Simulates a whole cluster in one process: the real scheduler core and sessions, in simulated time, from a seed.

Clients, workers, and the network are simulated, with delays, broken connections, duplicate messages, crashes, and
freezes. Checks all invariants, and finally the guarantees to users: exactly one outcome per task, the right value,
and at most one start where requested.

    from scaler.testing.simulation import Chances, World
    report = World(seed=1, workers=100, clients=3, tasks=10_000, chances=Chances()).run()
"""

from scaler.testing.simulation.actors import Chances
from scaler.testing.simulation.world import SimulationReport, World

__all__ = ["Chances", "SimulationReport", "World"]
