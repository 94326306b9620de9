"""The settings and their sources: one model per component, and the way from flags, environment and TOML to it."""
