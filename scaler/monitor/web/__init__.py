"""The model over HTTP: web pages, live events, JSON, and metrics. Read-only."""
