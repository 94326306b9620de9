"""Connections: sessions over sockets. The only package that imports zmq, apart from `security/keys.py` for new keys."""
