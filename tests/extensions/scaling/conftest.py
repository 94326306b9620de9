"""A cluster without other extensions."""

from tests.unit.scheduler.conftest import cluster

__all__ = ["cluster"]
