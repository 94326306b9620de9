"""The methods of clients that extensions define. extended.pyi declares their types, and this module imports none of
them: the first use of a method does."""

from scaler.plugins import ExtensionMethod


class ExtendedCalls:
    map = ExtensionMethod("maps")
    starmap = ExtensionMethod("maps")
    imap = ExtensionMethod("maps")
    imap_unordered = ExtensionMethod("maps")
    executor = ExtensionMethod("maps")
    get = ExtensionMethod("graphs")


class AsyncExtendedCalls:
    map = ExtensionMethod("maps", "async_client")
    starmap = ExtensionMethod("maps", "async_client")
    imap = ExtensionMethod("maps", "async_client")
    imap_unordered = ExtensionMethod("maps", "async_client")
    executor = ExtensionMethod("maps", "async_client")
    get = ExtensionMethod("graphs", "async_client")
