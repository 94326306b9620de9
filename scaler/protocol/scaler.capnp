@0xb1f9a4d2c6e8035d;

# The bodies of Scaler's messages, for any language.
#
# One ZeroMQ message is an envelope: a header frame of 40 bytes (little endian: protocol version u32, flags u32, session
# 16 bytes, sequence u64, acknowledged u64), a body frame, and attachments. The body frame is one `Body` in Cap'n Proto's
# standard stream framing, not packed.
#
# Limits. A body has at most 1 MiB (1,048,576 bytes); Submit, Run, Done, Finished and Relay at most 64 MiB. A reader
# checks the size first, then reads with a traversal limit of max(8192, 4 x the body's words) and nesting 32, and refuses
# the whole message when one field breaks its rule. A list of structs or texts has at most 65,536 entries.
#
# Ids. A task's or object's id is 16 bytes: owner's peer id (8), kind (2, big endian: 0 task, 0xFFFF uploaded object,
# else the attempt whose result this is), counter (6, big endian). Functions may also be named by the first 16 bytes
# that BLAKE2b with a digest of 16 bytes gives for their content. A peer id is 8 bytes. "Or empty" is said where an id may
# be missing; everywhere else any other length is an error.
#
# Columns. A message about many tasks carries one column per property; entry i of every column belongs to task i, and
# columns whose lengths disagree are an error:
#   ids        Data, 16 bytes per entry, nothing between them
#   u8 .. u64  Data, unsigned integers of that size, little endian, nothing between them
#   payloads   List(Data), one entry each
#   ragged     a u32 column of counts and one flat column of all entries; both empty when no task has any
#
# Payloads are bytes that begin with a tag: 1 parts (a pickle and its buffers), 2 arguments (one entry each), 3 stored
# reference (25 bytes: 3, object id, size u64 little endian), 4 an exception (a version, 1; three u32 sizes; the name of
# its type, its text and its traceback in UTF-8; a pickle), 0x80 a pickle as it is. Nobody on the way looks further, but
# for an exception's texts.
#
# Numbers. Seconds are finite, from 0 to 1e9. A clock's reading (sentAt) is any finite number and means something to its
# sender only. Percent are finite and not negative.

struct Body {
  union {
    hello @0 :Hello;
    welcome @1 :Welcome;
    refused @2 :Refused;
    goodbye @3 :Goodbye;
    acknowledge @4 :Acknowledge;
    submit @5 :Submit;
    acknowledgeResults @6 :AcknowledgeResults;
    cancel @7 :Cancel;
    clear @8 :Clear;
    pin @9 :Pin;
    release @10 :Release;
    finished @11 :Finished;
    run @12 :Run;
    forgetFunctions @13 :ForgetFunctions;
    recall @14 :Recall;
    returned @15 :Returned;
    done @16 :Done;
    output @17 :Output;
    workerHeartbeat @18 :WorkerHeartbeat;
    heartbeat @19 :Heartbeat;
    heartbeatEcho @20 :HeartbeatEcho;
    drain @21 :Drain;
    relay @22 :Relay;
    relayClosed @23 :RelayClosed;
    shutdownCluster @24 :ShutdownCluster;
    shutdownReply @25 :ShutdownReply;
    shutdown @26 :Shutdown;
    managerStatus @27 :ManagerStatus;
    desired @28 :Desired;
    monitorStatus @29 :MonitorStatus;
    putObject @30 :PutObject;
    getObject @31 :GetObject;
    linkObject @32 :LinkObject;
    forgetObjects @33 :ForgetObjects;
    forgetOwner @34 :ForgetOwner;
    statStorage @35 :StatStorage;
    storageReply @36 :StorageReply;
    storageStatus @37 :StorageStatus;
    suspended @38 :Suspended;
    started @39 :Started;
    monitorEvents @40 :MonitorEvents;
    explain @41 :Explain;
    explained @42 :Explained;
    readLog @43 :ReadLog;
    taskLog @44 :TaskLog;
    printed @45 :Printed;
  }
}

# -- handshake, life and end ------------------------------------------------------------------------------------------

enum Role {
  client @0;
  worker @1;
  manager @2;
  monitor @3;
  admin @4;
  scheduler @5;                  # the scheduler as a peer of the object storage
}

struct Capability {
  # What a worker offers, or what a task needs at least. Names of one list differ.

  name @0 :Text;
  amount @1 :Float64;            # 0: a label, without a quantity; else finite and above 0
}

struct ClientDetails {
  name @0 :Text;                 # for people
}

struct WorkerDetails {
  managerId @0 :Text;            # manager that started it; empty: none
  unitId @1 :Text;               # unit of that manager that it runs in; empty: none
  slots @2 :UInt32;              # tasks it runs at once
  queueSize @3 :UInt32;          # the most tasks that may wait behind each slot
  capabilities @4 :List(Capability);
}

struct ManagerDetails {
  managerId @0 :Text;
  kind @1 :Text;                 # as in the configuration, such as baremetal_native
  maxConcurrency @2 :Int64;      # the most slots it may provide; -1: no limit
  unitSlots @3 :UInt32;          # slots of one unit
  capabilities @4 :List(Capability);
  fixed @5 :Bool;                # it starts all of maxConcurrency by itself, whatever Desired says
}

struct Details {
  union {
    none @0 :Void;
    client @1 :ClientDetails;
    worker @2 :WorkerDetails;
    manager @3 :ManagerDetails;
  }
}

struct Hello {
  # First message of every connection, from the connecting side. The answer is Welcome or Refused.

  role @0 :Role;
  resume @1 :Bool;               # this session has spoken to the server before
  protocolVersion @2 :UInt32;
  scalerVersion @3 :Text;
  pythonVersion @4 :Text;        # such as 3.11.7; a peer of another language leaves it empty
  cloudpickleVersion @5 :Text;
  hostname @6 :Text;
  pid @7 :UInt32;
  details @8 :Details;
}

struct Welcome {
  resumed @0 :Bool;              # false: both sides count from 1 again
  incarnation @1 :UInt64;        # made anew at every start of the server
  leaseSeconds @2 :Float64;      # how long the server keeps the session of a peer that is out of contact
  heartbeatSeconds @3 :Float64;  # how often the peer should say that it is alive
  objectStorageAddress @4 :Text; # empty: not known
  maxPendingTasks @5 :Int64 = -1; # tasks that a client may have unfinished; -1: no limit
  sharedMemory @6 :Text;         # of an object storage: its socket for descriptors and the peer's word for it, or empty
}

enum RefusalReason {
  version @0;
  role @1;
  duplicate @2;
  limit @3;
  malformed @4;
  expired @5;
}

struct Refused {
  # The connection ends with this.

  reason @0 :RefusalReason;
  text @1 :Text;                 # for people; names both sides
}

struct Goodbye {
  # An orderly end, from either side; the session is forgotten at once.

  text @0 :Text;
}

struct Acknowledge {
  # Says nothing but what the envelope's header says.
}

# -- tasks ------------------------------------------------------------------------------------------------------------

struct Spec {
  # What the tasks of a group have in common.

  function @0 :Data;             # id of a registered function
  serializer @1 :Data;           # id of the registered serializer of the user, or empty
  needs @2 :List(Capability);    # in ascending order of their names
  priority @3 :Int64;            # higher runs first
  retries @4 :UInt32 = 3;
  retryOn @5 :Data;              # pickled tuple of exception types, or empty
  timeoutSeconds @6 :Float64;    # 0: no limit of its own
  profiling @7 :Bool;
  streamOutput @8 :Bool;
  deliver @9 :Bool = true;       # false: the client wants the outcome of a success, not its value
  name @10 :Text;                # for people
  parent @11 :Data;              # id of the task that submitted these, or empty
}

struct Function {
  # A function or a serializer.

  id @0 :Data;                   # content id when the payload is the pickle itself, object id when it is stored
  payload @1 :Data;
}

struct TaskGroup {
  spec @0 :Spec;
  ids @1 :Data;                  # column of ids
  payloads @2 :List(Data);       # column of payloads: the arguments
  referenceCounts @3 :Data;      # ragged column: the tasks and objects that each task needs; counts
  references @4 :Data;           # and their ids, in the order of the arguments' placeholders
}

struct Submit {
  # Client to scheduler.

  functions @0 :List(Function); # those that this client says for the first time
  groups @1 :List(TaskGroup);
  acknowledged @2 :UInt64;               # number of the last Finished whose futures this client has resolved
}

struct AcknowledgeResults {
  # Client to scheduler, when it has nothing to submit.

  acknowledged @0 :UInt64;               # as in Submit
}

struct Cancel {
  # Client to scheduler: each of these ends in a Finished, cancelled or not.

  ids @0 :Data;                  # column of ids
}

struct Clear {
  # Client to scheduler: cancel all of this client's tasks and forget all that it holds.
}

struct Pin {
  # Client to scheduler: objects that it has put into the storage to use them in many tasks.

  ids @0 :Data;                  # column of ids
}

struct Release {
  # Client to scheduler: objects, stored results or functions that it no longer uses.

  ids @0 :Data;                  # column of ids
}

struct Finished {
  # Scheduler to client: one entry per task, ever.

  number @0 :UInt64;             # counts the Finished of this client from 1
  ids @1 :Data;                  # column of ids
  outcomes @2 :Data;             # u8 column: 0 success, 1 exception, 3 cancelled, 4 timed out, 5 rejected, 6 worker lost,
                                 # 7 processor died, 8 poison, 9 object lost. Never 2 or 10 (see Done)
  payloads @3 :List(Data);       # the value, the exception, or text in UTF-8
  durationUs @4 :Data;           # u32 column: wall time in microseconds, 4294967295 for anything longer
  cpuUs @5 :Data;                # u64 column, or empty when no task of the batch asked for profiling
  peakBytes @6 :Data;            # u64 column, or empty when no task of the batch asked for profiling
}

struct RunGroup {
  spec @0 :Spec;
  ids @1 :Data;                  # column of ids
  attempts @2 :Data;             # u16 column, from 1 to 65534
  payloads @3 :List(Data);       # column of payloads: the arguments
  inputCounts @4 :Data;          # ragged column: the payloads of each task's references; counts
  inputs @5 :List(Data);         # and the payloads
}

struct Run {
  # Scheduler to worker.

  functions @0 :List(Function); # those that this worker has not been told yet
  groups @1 :List(RunGroup);
}

struct ForgetFunctions {
  # Scheduler to worker: functions and serializers that no task uses any more.

  ids @0 :Data;                  # column of ids
}

struct Recall {
  # Scheduler to worker: give these attempts back. Each is answered in a Returned or a Done.

  ids @0 :Data;                  # column of ids
  attempts @1 :Data;             # u16 column, from 1 to 65534
  kill @2 :Bool;                 # true: end the started ones; false: they go on
}

struct Returned {
  # Worker to scheduler: answer to Recall, or given back unasked.

  ids @0 :Data;                  # column of ids
  attempts @1 :Data;             # u16 column, from 1 to 65534
  started @2 :Data;              # u8 column: 0 never started and forgotten; 1 it runs on and will be in a Done
}

struct Started {
  # Worker to scheduler to client: these tasks run, and have done so for a while.

  ids @0 :Data;                  # column of ids
}

struct Suspended {
  # Worker to scheduler: attempts that wait for tasks of their own. Their slots are free until they go on.

  ids @0 :Data;                  # column of ids
  attempts @1 :Data;             # u16 column, from 1 to 65534
  suspended @2 :Data;            # u8 column: 1 waits, 0 goes on
}

struct Done {
  # Worker to scheduler: attempts that ended.

  ids @0 :Data;                  # column of ids
  attempts @1 :Data;             # u16 column, from 1 to 65534
  outcomes @2 :Data;             # u8 column as in Finished, and 2 exception of a type in retryOn, 10 never started
  payloads @3 :List(Data);       # as in Finished
  durationUs @4 :Data;           # as in Finished
  cpuUs @5 :Data;                # as in Finished
  peakBytes @6 :Data;            # as in Finished
}

struct Output {
  # What a task wrote, on its way to its client, which asked for it as it comes. Best effort.

  task @0 :Data;                 # id
  isStderr @1 :Bool;
  text @2 :Data;                 # bytes as written
}

struct Printed {
  # Worker to scheduler: what tasks printed whose clients did not ask for it as it comes. Kept for who asks later.

  ids @0 :Data;                  # column of ids; one may be there several times
  areStderr @1 :Data;            # u8 column: 1 stderr, 0 stdout
  truncatedBytes @2 :Data;                 # u64 column: bytes that are missing before each text
  texts @3 :List(Data);          # one entry each, UTF-8
}

struct ProcessorStatus {
  pid @0 :UInt32;
  cpuPercent @1 :Float64;
  rssBytes @2 :UInt64;
  initialized @3 :Bool;
  suspended @4 :Bool;
  running @5 :Data;              # id of a task, or empty
  runningSeconds @6 :Float64;
}

struct WorkerHeartbeat {
  # Worker to scheduler, every heartbeat interval.

  sentAt @0 :Float64;            # the sender's clock; comes back in HeartbeatEcho
  agentCpuPercent @1 :Float64;
  agentRssBytes @2 :UInt64;
  queued @3 :UInt32;             # tasks that wait behind the slots
  latencySeconds @4 :Float64;    # round trip of the heartbeat before this one
  processors @5 :List(ProcessorStatus);
}

struct Heartbeat {
  # Any other peer to its server: it is alive.

  sentAt @0 :Float64;            # the sender's clock; comes back in HeartbeatEcho
}

struct HeartbeatEcho {
  sentAt @0 :Float64;            # of the heartbeat that this answers
}

struct Drain {
  # Scheduler to worker: start nothing new, give back what has not started, end when idle.

  text @0 :Text;                 # why, for people
}

struct Relay {
  # A message of or to a client that lives inside a task, through its worker.

  client @0 :Data;               # peer id of the nested client
  body @1 :Data;                 # a Body, framed as any other
}

struct RelayClosed {
  # Worker to scheduler: this nested client is gone.

  client @0 :Data;               # peer id of the nested client
}

struct ShutdownCluster {
  # Client or admin to scheduler: end the cluster.
}

struct ShutdownReply {
  # Scheduler's answer to ShutdownCluster.

  accepted @0 :Bool;
  text @1 :Text;                 # for people
}

struct Shutdown {
  # Scheduler to workers and managers: the cluster ends; stop what you run and end too.

  text @0 :Text;                 # why, for people
}

# -- worker managers --------------------------------------------------------------------------------------------------

enum UnitState {
  pending @0;
  running @1;
  stopping @2;
  failed @3;
  stopped @4;
}

struct UnitStatus {
  unitId @0 :Text;
  state @1 :UnitState;
  slots @2 :UInt32;
  ageSeconds @3 :Float64;
  reason @4 :Text;               # for people, or empty
}

struct ManagerStatus {
  # Manager to scheduler, after every look at reality; its heartbeat as well.

  sentAt @0 :Float64;            # the sender's clock; comes back in HeartbeatEcho
  units @1 :List(UnitStatus);
  degradedReason @2 :Text;              # why it cannot start units now, for people; empty when all is well
}

struct Desired {
  # Scheduler to manager.

  units @0 :UInt32;              # how many should exist
  drained @1 :List(Text);        # ids of units that have no work and may be stopped
  reason @2 :Text;               # for people
  joined @3 :List(Text);         # ids of units whose worker has connected since the last such message
}

# -- monitors ---------------------------------------------------------------------------------------------------------

struct MonitorStatus {
  # Scheduler to monitor: what is going on.

  json @0 :Data;                 # UTF-8
}

struct MonitorEvents {
  # Scheduler to monitor: what has happened since the last such message.

  json @0 :Data;                 # UTF-8
}

struct Explain {
  # Client or monitor to scheduler: why does this task wait, or what became of it? Answered with Explained.

  task @0 :Data;                 # id
}

struct Explained {
  task @0 :Data;                 # id
  text @1 :Text;                 # for people
}

struct ReadLog {
  # Client or monitor to scheduler: what did this task print? Answered with TaskLog.

  task @0 :Data;                 # id
}

struct TaskLog {
  task @0 :Data;                 # id
  stdout @1 :Data;
  stderr @2 :Data;
  truncatedBytes @3 :UInt64;                # bytes that were left out
}

# -- object storage ---------------------------------------------------------------------------------------------------

struct PutObject {
  # Attachments of the envelope: the object's bytes from offset on. An object is whole when all its bytes have come.
  # Without attachments at offset 0, it only asks whether there is room.

  request @0 :UInt64;            # chosen by the asking side; comes back in the reply
  id @1 :Data;                   # id
  parts @2 :Data;                # u64 column: sizes of the object's parts; their sum is the object's size
  offset @3 :UInt64;
  shared @4 :Bool;               # no attachments: the object is in memory whose descriptor was sent beside
}

struct GetObject {
  # Answered when the object is whole, or with `missing` after the deadline.

  request @0 :UInt64;
  id @1 :Data;                   # id
  deadlineSeconds @2 :Float64;   # 0: at once
  shared @3 :Bool;               # the asking side can take the descriptor of shared memory
}

struct LinkObject {
  # Make `id` another name of the bytes of `target`.

  request @0 :UInt64;
  id @1 :Data;                   # id
  target @2 :Data;               # id
}

struct ForgetObjects {
  ids @0 :Data;                  # column of ids
}

struct ForgetOwner {
  # Forget all objects whose ids begin with this peer id.

  owner @0 :Data;                # peer id
}

struct StatStorage {
  # The answer is a StorageStatus.

  request @0 :UInt64;
}

enum StorageResult {
  ok @0;
  missing @1;
  full @2;
  tooLarge @3;
  invalid @4;
  unshared @5;                   # the descriptor of a shared PutObject is not there: put it again with attachments
}

struct StorageReply {
  # Answer to PutObject and LinkObject (without attachments) and to GetObject (attachments: the next bytes of the object).
  # A large object comes in several replies, in order.

  request @0 :UInt64;
  result @1 :StorageResult;
  text @2 :Text;                 # for people, or empty
  parts @3 :Data;                # u64 column: sizes of the object's parts, or empty
  offset @4 :UInt64;             # where this reply's bytes begin
  shared @5 :Bool;               # no attachments: the descriptor of the object's memory was sent beside
}

struct StorageStatus {
  request @0 :UInt64;
  objects @1 :UInt64;
  bytes @2 :UInt64;
  limitBytes @3 :UInt64;
  waitingGets @4 :UInt64;
}
