"""Connections: sessions over sockets. Only this package imports zmq, apart from `security/keys.py` for new keys."""
