"""What can be set, and how: one model per component, and the way from flags, environment and TOML to it."""
