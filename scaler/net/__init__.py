"""Sessions over sockets. The only package that imports zmq, except for key generation in `security/keys.py`."""
