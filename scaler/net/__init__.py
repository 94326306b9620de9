"""Sessions over sockets. Only this package imports zmq, except for key generation in `security/keys.py`."""
