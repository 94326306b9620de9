"""Settings: a model for each component, loaded from flags, environment variables, and TOML."""
