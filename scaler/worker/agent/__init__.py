"""The agent's process: `core` decides (pure), `shell` and `processors` act. It never imports user code."""
