"""Worker managers, which start and stop as many units (hosts of workers) as the scheduler requests."""
