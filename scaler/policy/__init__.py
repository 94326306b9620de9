"""How tasks are spread over workers, and how many workers there should be."""
