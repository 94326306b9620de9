"""The worker: an agent process that talks to the scheduler, and processors that run user code (see docs/design.md)."""
