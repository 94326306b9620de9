"""Worker: an agent process connected to the scheduler, and processors that run user code. See docs/design.md."""
