"""Connections over ZeroMQ: what components import."""

from scaler.net.zmq_connector import ZmqConnector
from scaler.net.zmq_listener import ZmqListener

__all__ = ["ZmqConnector", "ZmqListener"]
