"""Agent process: `core` decides (pure), `shell` and `processors` perform I/O. Never imports user code."""
