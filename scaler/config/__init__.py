"""Settings: one model per component, loaded from flags, environment variables, and TOML."""
