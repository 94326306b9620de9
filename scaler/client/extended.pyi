from abc import ABCMeta

from scaler.extensions.asynchronous.client import asked
from scaler.extensions.data_plane.client import CopyCalls
from scaler.extensions.durability.cached import CachedCalls
from scaler.extensions.durability.client import SessionCalls
from scaler.extensions.environment.upload import UploadCalls
from scaler.extensions.failures.bundle import FailureCalls
from scaler.extensions.gangs.client import AsyncGangCalls, GangCalls
from scaler.extensions.graphs.calls import AsyncGraphCalls, GraphCalls
from scaler.extensions.history.client import HistoryCalls
from scaler.extensions.logs.client import LogCalls
from scaler.extensions.maps.asynchronous import AsyncMapCalls
from scaler.extensions.maps.calls import MapCalls
from scaler.extensions.profiles.client import ProfileCalls
from scaler.extensions.queries.client import Queries
from scaler.extensions.streams.asynchronous import AsyncStreamCalls
from scaler.extensions.streams.client import StreamCalls
from scaler.extensions.telemetry.calls import TraceCalls

class ExtendedCalls(MapCalls, GraphCalls, GangCalls, StreamCalls, CachedCalls, metaclass=ABCMeta): ...
class AsyncExtendedCalls(AsyncMapCalls, AsyncGraphCalls, AsyncGangCalls, AsyncStreamCalls, metaclass=ABCMeta): ...
class ExtendedQuestions(
    FailureCalls,
    SessionCalls,
    HistoryCalls,
    LogCalls,
    ProfileCalls,
    Queries,
    CopyCalls,
    UploadCalls,
    TraceCalls,
    metaclass=ABCMeta,
): ...

class AsyncExtendedQuestions:
    bundle = asked(ExtendedQuestions.bundle)
    futures = asked(ExtendedQuestions.futures)
    replay = asked(ExtendedQuestions.replay)
    history = asked(ExtendedQuestions.history)
    logs = asked(ExtendedQuestions.logs)
    profile = asked(ExtendedQuestions.profile)
    persist = asked(ExtendedQuestions.persist)
    upload = asked(ExtendedQuestions.upload)
    cancel = asked(ExtendedQuestions.cancel)
    cluster = asked(ExtendedQuestions.cluster)
    explain = asked(ExtendedQuestions.explain)
    objects = asked(ExtendedQuestions.objects)
    restart_workers = asked(ExtendedQuestions.restart_workers)
    run = asked(ExtendedQuestions.run)
    table = asked(ExtendedQuestions.table)
    tasks = asked(ExtendedQuestions.tasks)
    wait_for_workers = asked(ExtendedQuestions.wait_for_workers)
    who_has = asked(ExtendedQuestions.who_has)
    trace = asked(ExtendedQuestions.trace)
