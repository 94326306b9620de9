"""Built-in extensions, one folder per capability. Nothing outside a folder imports it.

`interface.py` defines the parts of an extension. `scaler.plugins.EXTENSIONS` lists the built-in extensions."""
