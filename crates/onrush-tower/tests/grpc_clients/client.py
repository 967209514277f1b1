"""A client of grpcio, whose core is that of C++, Ruby and PHP as well. Argument: the address of the
service. Prints `done`."""

import queue
import sys
import time

import grpc

WAIT_S = 60
# A ping that is not answered within this time ends the connection, before the quiet time is over.
PING_MS, ANSWERED_MS, QUIET_MS = 1000, 7000, 10_000
OPTIONS = [
    ("grpc.keepalive_time_ms", PING_MS),
    ("grpc.keepalive_timeout_ms", ANSWERED_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
states = []


def expect(what, found, expected):
    if found != expected:
        raise AssertionError(f"{what}: {found!r:.200} instead of {expected!r:.200}")


def messages(from_queue):
    while (message := from_queue.get()) is not None:
        yield message


def opened():
    return int(open_calls(b"?", timeout=WAIT_S))


def becomes(number):
    """The number of calls of `Each` that the server has not dropped."""
    for _ in range(100 * WAIT_S):
        if (last := opened()) == number:
            return
        time.sleep(0.01)
    raise AssertionError(f"{last} calls are open, not {number}")


channel = grpc.insecure_channel(sys.argv[1], options=OPTIONS)
channel.subscribe(states.append)
one = channel.unary_unary("/test.Echo/One")
each = channel.stream_stream("/test.Echo/Each")
open_calls = channel.unary_unary("/test.Echo/Open")

# One message, also of many frames; a status without a message.
for message in [b"one", b"x" * (1 << 20)]:
    expect("a call", one(message, timeout=WAIT_S), message)
for call, message, code in [
    (one, b"", grpc.StatusCode.INVALID_ARGUMENT),
    (channel.unary_unary("/test.Echo/Other"), b"x", grpc.StatusCode.UNIMPLEMENTED),
]:
    try:
        call(message, timeout=WAIT_S)
        raise AssertionError("it succeeds")
    except grpc.RpcError as error:
        expect("the code", error.code(), code)
# More at once than the server permits on a connection: they wait for their turn.
calls = [one.future(b"%d" % number, timeout=WAIT_S) for number in range(300)]
expect("all", [call.result() for call in calls], [b"%d" % number for number in range(300)])

# Both directions at once: each message is answered before the next one is sent.
sent = queue.SimpleQueue()
answers = each(messages(sent), timeout=WAIT_S)
for number in range(100):
    sent.put(b"message %d" % number)
    expect("an answer", next(answers), b"message %d" % number)
# Nothing but pings for a while. Then the call continues, on the same connection.
states.clear()
time.sleep(QUIET_MS / 1000)
sent.put(b"later")
expect("after pings", next(answers), b"later")
expect("changes of the connection", states, [])
sent.put(None)
expect("the rest", list(answers), [])
expect("the code", answers.code(), grpc.StatusCode.OK)

# A deadline, and a cancelled call: the server drops both, and others continue.
silent = queue.SimpleQueue()
late = each(messages(silent), timeout=0.5)
becomes(1)
try:
    next(late)
    raise AssertionError("there is an answer")
except grpc.RpcError as error:
    expect("the code", error.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
becomes(0)
cancelled = each(messages(silent), timeout=WAIT_S)
becomes(1)
cancelled.cancel()
expect("the code", cancelled.code(), grpc.StatusCode.CANCELLED)
becomes(0)
silent.put(None)
silent.put(None)
expect("a call", one(b"last", timeout=WAIT_S), b"last")
print("done")
