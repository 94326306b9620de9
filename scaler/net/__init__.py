"""Connections: sessions over sockets. The only package that imports zmq."""
