"""Connections: sessions over sockets. The only package that imports zmq; `memory` is its twin without sockets."""
