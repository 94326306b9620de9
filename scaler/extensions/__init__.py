"""Extensions: one capability in one folder each, which nothing outside the folder imports.

`interface.py` says what an extension is made of, and `scaler.plugins.EXTENSIONS` names the built-in ones.
"""
