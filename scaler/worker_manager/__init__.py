"""Worker managers: they start and stop the units that workers live in, as many as the scheduler wants."""
