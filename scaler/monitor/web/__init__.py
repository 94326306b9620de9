"""The model as web pages, live events, JSON and metrics, over HTTP. Read-only."""
