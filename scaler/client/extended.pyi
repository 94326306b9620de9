from abc import ABCMeta

from scaler.extensions.graphs.asynchronous import AsyncGraphCalls
from scaler.extensions.graphs.calls import GraphCalls
from scaler.extensions.maps.asynchronous import AsyncMapCalls
from scaler.extensions.maps.calls import MapCalls

class ExtendedCalls(MapCalls, GraphCalls, metaclass=ABCMeta): ...
class AsyncExtendedCalls(AsyncMapCalls, AsyncGraphCalls, metaclass=ABCMeta): ...
