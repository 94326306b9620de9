"""A whole cluster in one process and in simulated time: the real scheduler core and real sessions, from a seed.

Clients, workers and the network are simulated: delays, connections that break in the middle of a message, messages
that come twice, workers and clients that crash, freeze and come back. Every invariant is checked, and at the end the
promises to users: exactly one outcome per task, the right value, and at most one start where that was asked for.

    from scaler.testing.simulation import Chances, World
    report = World(seed=1, workers=100, clients=3, tasks=10_000, chances=Chances()).run()
"""

from scaler.testing.simulation.actors import Chances
from scaler.testing.simulation.world import SimulationReport, World

__all__ = ["Chances", "SimulationReport", "World"]
