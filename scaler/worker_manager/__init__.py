"""Worker managers. A manager starts and stops units, which run workers, at the scheduler's request."""
