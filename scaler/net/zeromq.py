"""Connections over ZeroMQ, both ends. Who needs one end only imports it from its own module."""

from scaler.net.zmq_connector import ZmqConnector
from scaler.net.zmq_listener import ZmqListener

__all__ = ["ZmqConnector", "ZmqListener"]
