"""Violations of TLS, sent by tlslite-ng, and the alerts that the RFCs require.

Arguments: the URL of a server. It has an object `/x`, permits PUT, and its certificate is not
checked. Prints `done`, or the rows that differ.
"""

import socket
import ssl
import sys
import urllib.parse

from tlslite.api import HandshakeSettings, TLSConnection
from tlslite.constants import AlertDescription as Alerts
from tlslite.constants import CipherSuite, ContentType
from tlslite.errors import TLSAbruptCloseError, TLSAlert, TLSRemoteAlert
from tlslite.messages import Message

URL = urllib.parse.urlsplit(sys.argv[1])
ADDRESS = (URL.hostname, URL.port)
LIMIT_S = 10
# What is seen instead of an alert.
CLOSED, RESET, CONTINUES, STUCK = "closed", "reset", "continues", "STUCK"


def connect():
    sock = socket.create_connection(ADDRESS, LIMIT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Wire:
    """A socket. Inverts the last byte of what is sent next, if `breaks` is set."""

    def __init__(self, sock):
        self.sock = sock
        self.breaks = False

    def _changed(self, data):
        data = bytearray(data)
        if self.breaks:
            data[-1] ^= 1
            self.breaks = False
        return data

    def send(self, data):
        self.sock.sendall(self._changed(data))
        return len(data)

    def sendall(self, data):
        self.sock.sendall(self._changed(data))

    def __getattr__(self, name):
        return getattr(self.sock, name)


class Captured(Exception):
    pass


class Capture:
    """A socket that keeps the first flight."""

    def __init__(self):
        self.data = bytearray()

    def send(self, data):
        self.data += data
        return len(data)

    sendall = send

    def recv(self, _):
        raise Captured

    def close(self):
        pass


def settings(version):
    chosen = HandshakeSettings()
    chosen.minVersion = chosen.maxVersion = version
    return chosen


def hello(version=(3, 4), change=lambda chosen: None):
    """The record of a ClientHello."""
    chosen = settings(version)
    change(chosen)
    capture = Capture()
    try:
        TLSConnection(capture).handshakeClientCert(settings=chosen, serverName="localhost")
    except Captured:
        pass
    return bytes(capture.data)


def record(kind, content, version=(3, 3)):
    return bytes([kind, *version]) + len(content).to_bytes(2, "big") + content


def outcome_of(sock):
    """The first alert without encryption, or how the connection ends, or that it continues."""
    received = b""
    try:
        while True:
            more = sock.recv(65536)
            if not more:
                return CLOSED
            received += more
            while len(received) >= 5:
                length = int.from_bytes(received[3:5], "big")
                if len(received) < 5 + length:
                    break
                if received[0] == ContentType.alert and length == 2:
                    return received[6]
                if received[0] == ContentType.handshake:
                    return CONTINUES
                received = received[5 + length :]
    except ConnectionResetError:
        return RESET
    except socket.timeout:
        return STUCK


def raw(*pieces):
    with connect() as sock:
        for piece in pieces:
            sock.sendall(piece)
        return outcome_of(sock)


def established(version, act):
    """What a client sees that calls `act` after its handshake."""
    with connect() as sock:
        wire = Wire(sock)
        client = TLSConnection(wire)
        client.ignoreAbruptClose = False
        client.handshakeClientCert(settings=settings(version), serverName="localhost")
        try:
            act(client, wire)
            response = client.read(min=1, max=65536)
            return CONTINUES if response.startswith(b"HTTP/1.1 200") else CLOSED
        except TLSRemoteAlert as alert:
            return CLOSED if alert.description == Alerts.close_notify else alert.description
        except TLSAbruptCloseError:
            return RESET
        except TLSAlert as alert:
            return "client: " + str(alert)
        except ConnectionResetError:
            return RESET
        except BrokenPipeError:
            return RESET
        except socket.timeout:
            return STUCK


GET = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"


def send(client, kind, content):
    """Sends one protected record."""
    for _ in client._recordLayer.sendRecord(Message(kind, bytearray(content))):
        pass
    client.sock.flush()


def then_get(*messages):
    def act(client, _):
        for kind, content in messages:
            send(client, kind, content)
        client.write(GET)

    return act


def broken(client, wire):
    wire.breaks = True
    client.write(GET)


def unprotected(kind, content):
    def act(_, wire):
        wire.sock.sendall(record(kind, content))

    return act


def old(version):
    """A ClientHello of an old version, without `supported_versions`."""
    suites = bytes([0, 4, 0xC0, 0x2F, 0xC0, 0x13])
    body = bytes(version) + bytes(32) + b"\0" + suites + b"\1\0"
    return record(22, b"\1" + len(body).to_bytes(3, "big") + body, (3, 1))



def cut_hello():
    """The extensions are longer than the message."""
    whole = bytearray(hello())
    body = whole[5:-3]
    body[1:4] = (len(body) - 4).to_bytes(3, "big")
    return record(22, bytes(body), (3, 1))


def twice(extension):
    """A ClientHello that has its last extension, of this type, twice."""
    suites = bytes([0, 2, 0xC0, 0x2F])
    entry = extension.to_bytes(2, "big") + b"\0\0"
    extensions = entry * 2
    body = b"\3\3" + bytes(32) + b"\0" + suites + b"\1\0"
    body += len(extensions).to_bytes(2, "big") + extensions
    return record(22, b"\1" + len(body).to_bytes(3, "big") + body, (3, 1))


def compressed():
    body = b"\3\3" + bytes(32) + b"\0" + bytes([0, 2, 0xC0, 0x2F]) + b"\1\1" + b"\0\0"
    return record(22, b"\1" + len(body).to_bytes(3, "big") + body, (3, 1))


def in_records(size):
    whole = hello()
    message = whole[5:]
    return b"".join(record(22, message[at : at + size]) for at in range(0, len(message), size))


BAD_MAC, OVERFLOW = Alerts.bad_record_mac, Alerts.record_overflow
UNEXPECTED, DECODE = Alerts.unexpected_message, Alerts.decode_error
ILLEGAL, VERSION = Alerts.illegal_parameter, Alerts.protocol_version

# Before the handshake: name, bytes, what is permitted.
RAW = [
    ("a ClientHello", [hello()], [CONTINUES]),
    ("a ClientHello of TLS 1.2", [hello((3, 3))], [CONTINUES]),
    # RFC 8446 §5.1: messages may span records.
    ("a ClientHello in records of one byte", [in_records(1)], [CONTINUES]),
    ("a ClientHello in segments", [hello()[:3], hello()[3:70], hello()[70:]], None),
    ("SSL 2.0", [b"\x80\x2e\x01\x00\x02" + bytes(43)], [UNEXPECTED, VERSION]),
    ("SSL 3.0", [old((3, 0))], [VERSION]),  # RFC 8446 §4.2.1, Appendix D.5
    ("TLS 1.0", [old((3, 1))], [VERSION]),
    ("TLS 1.1", [old((3, 2))], [VERSION]),
    ("a record of unknown type", [record(99, b"x")], [UNEXPECTED]),  # RFC 8446 §5
    ("a heartbeat", [record(24, b"\1\0\0")], [UNEXPECTED]),
    ("a record of another protocol", [b"\x16\x05\x01\x00\x01x"], [VERSION]),
    ("a record that is too long", [b"\x16\x03\x01\x40\x01"], [OVERFLOW]),  # RFC 8446 §5.1
    ("an empty handshake record", [record(22, b"")], [UNEXPECTED]),  # RFC 8446 §5.1
    ("data first", [record(23, b"x" * 32)], [UNEXPECTED]),  # RFC 8446 §5
    ("ChangeCipherSpec first", [record(20, b"\1")], [UNEXPECTED]),  # RFC 8446 §5
    ("a fatal alert first", [record(21, b"\2\x28")], [CLOSED]),  # RFC 8446 §6.2
    ("Finished first", [record(22, b"\x14\0\0\x0c" + bytes(12))], [UNEXPECTED]),
    ("a message that is too long", [record(22, b"\1\xff\xff\xff" + bytes(60))],
     [DECODE, ILLEGAL, Alerts.handshake_failure, UNEXPECTED]),
    ("no common cipher suite", [old((3, 3)).replace(b"\xc0\x2f\xc0\x13", b"\0\1\0\2")],
     [Alerts.handshake_failure]),  # RFC 5246 §7.4.1.3
    ("a truncated ClientHello", [cut_hello()], [DECODE]),  # RFC 8446 §6.2
    ("an extension twice", [twice(23)], [ILLEGAL, DECODE]),  # RFC 8446 §4.2
    ("compression only", [compressed()], [ILLEGAL, DECODE, Alerts.handshake_failure]),
]

T12, T13 = (3, 3), (3, 4)

# After the handshake: name, versions, action, what is permitted.
ESTABLISHED = [
    ("a request", [T12, T13], then_get(), [CONTINUES]),
    ("a changed byte", [T12, T13], broken, [BAD_MAC]),  # RFC 8446 §5.2
    ("a record without protection", [T12, T13], unprotected(23, GET), [BAD_MAC]),
    ("a handshake message without protection", [T13], unprotected(22, b"\0" * 40),
     [UNEXPECTED, BAD_MAC]),
    ("a record that is too long", [T12], unprotected(23, b"x" * (2**14 + 2049)), [OVERFLOW]),
    ("a record that is too long", [T13], unprotected(23, b"x" * (2**14 + 257)), [OVERFLOW]),
    ("content that is too long", [T13],
     lambda client, _: send(client, 23, b"x" * (2**14 + 1)), [OVERFLOW]),
    ("an unknown content type", [T12, T13], then_get((99, b"x")), [UNEXPECTED]),
    ("only padding", [T13], then_get((0, b"")), [UNEXPECTED]),  # RFC 8446 §5.4
    ("ChangeCipherSpec, protected", [T13], then_get((20, b"\1")), [UNEXPECTED]),
    ("an empty handshake record", [T13], then_get((22, b"")), [UNEXPECTED]),
    ("one empty record of data", [T12, T13], then_get((23, b"")), [CONTINUES]),
    ("many empty records of data", [T12, T13], then_get(*[(23, b"")] * 200), [UNEXPECTED]),
    ("a key update", [T13], then_get((22, b"\x18\0\0\1\7")), [ILLEGAL]),  # RFC 8446 §4.6.3
    ("a key update that is too long", [T13], then_get((22, b"\x18\0\0\2\0\0")),
     [DECODE, UNEXPECTED, ILLEGAL]),
    ("Finished again", [T12, T13], then_get((22, b"\x14\0\0\x0c" + bytes(12))), [UNEXPECTED]),
    ("a ClientHello", [T13], then_get((22, hello()[5:])), [UNEXPECTED]),
    # RFC 5746 §4.4, RFC 5246 §7.2.2: a warning, and the connection continues; or the end.
    ("renegotiation", [T12], then_get((22, hello(T12)[5:])), [Alerts.no_renegotiation, UNEXPECTED]),
    ("a certificate", [T13], then_get((22, b"\x0b\0\0\4\0\0\0\0")), [UNEXPECTED]),
    ("a fatal alert", [T12, T13], then_get((21, b"\2\x50")), [CLOSED, RESET]),
    ("user_canceled", [T13], then_get((21, b"\1\x5a")), [CONTINUES]),  # RFC 8446 §6.1
    ("an alert of three bytes", [T12, T13], then_get((21, b"\1\x5a\0")), [DECODE, UNEXPECTED]),
    ("many warnings", [T12], then_get(*[(21, b"\1\x5a")] * 100), [UNEXPECTED, DECODE]),
    ("close_notify", [T12, T13], lambda client, _: send(client, 21, b"\1\0"), [CLOSED]),
]


def status(method, path, body=b""):
    """A request by another TLS stack."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with connect() as sock, context.wrap_socket(sock, server_hostname="localhost") as client:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return int(client.recv(4096).split()[1])


def truncated(version, ends):
    """A PUT whose connection ends in the middle."""
    path = f"/cut-{version[1]}-{ends.__name__}"
    with connect() as sock:
        client = TLSConnection(sock)
        client.closeSocket = False
        client.handshakeClientCert(settings=settings(version), serverName="localhost")
        head = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
        client.write(head.encode() + b"x" * 50_000)
        ends(client, sock)
        try:
            while sock.recv(65536):
                pass
        except ConnectionResetError:
            pass
    return status("GET", path)


def by_close_notify(client, sock):
    send(client, 21, b"\1\0")


def without_close_notify(client, sock):
    sock.shutdown(socket.SHUT_WR)


def shown(outcome):
    return Alerts.toStr(outcome) if isinstance(outcome, int) else str(outcome)


def main():
    wrong = []

    def judge(name, found, permitted):
        if found not in permitted:
            expected = " or ".join(shown(outcome) for outcome in permitted)
            wrong.append(f"{name}: {shown(found)} instead of {expected}")
        if status("GET", "/x") != 200:
            wrong.append(f"{name}: the server does not serve another client")

    for name, pieces, permitted in RAW:
        if permitted is None:
            whole = hello()
            pieces, permitted = [whole[:3], whole[3:70], whole[70:]], [CONTINUES]
        judge(name, raw(*pieces), permitted)
    for name, versions, act, permitted in ESTABLISHED:
        for version in versions:
            found = established(version, act)
            judge(f"TLS 1.{version[1] - 1}, {name}", found, permitted)
    for version in [T12, T13]:
        for ends in [by_close_notify, without_close_notify]:
            found = truncated(version, ends)
            if found != 404:
                wrong.append(f"TLS 1.{version[1] - 1}, a PUT cut {ends.__name__}: {found}")
    print("\n".join(wrong) or "done")


main()
