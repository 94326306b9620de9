"""Worker managers, which start and stop as many units (which run workers) as the scheduler requests."""
