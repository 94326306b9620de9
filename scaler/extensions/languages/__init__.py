"""Tasks from clients in other languages: functions by name, with arguments and results as JSON."""

from scaler.plugins import Extension

EXTENSION = Extension("languages", own={"documents": "scaler.extensions.languages.by_name"})
