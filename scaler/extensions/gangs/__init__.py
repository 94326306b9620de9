"""Gangs: tasks that start together or not at all, have each other's addresses, and fail together.

client.py: tasks with a term -> core.py: all placed in one step -> member.py: JoinGang -> core.py: GangFormed to all
members -> member.py: the function -> client.py: one future
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "gangs",
    scheduler="scaler.extensions.gangs.core:Gangs",
    client="scaler.extensions.gangs.client:GangCalls",
    async_client="scaler.extensions.gangs.client:AsyncGangCalls",
)
