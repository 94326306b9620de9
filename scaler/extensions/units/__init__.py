"""Facts about a unit that its worker reads from the environment: its id at the service that started it, and GPUs."""

from scaler.plugins import Extension

EXTENSION = Extension("units", own={"unit": "scaler.extensions.units.unit_id:with_unit"})
