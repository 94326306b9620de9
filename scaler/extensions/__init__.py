"""Built-in extensions: one folder per capability, which nothing outside the folder imports.

`interface.py` defines the parts of an extension. `scaler.plugins.EXTENSIONS` lists the built-in extensions."""
