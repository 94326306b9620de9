"""`AsyncClient`: a client for asyncio."""

from scaler.plugins import Extension

EXTENSION = Extension("asynchronous")
