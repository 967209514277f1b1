#!/bin/sh
# niquests 3.21.2 (PyPI, with jh2 5.0.15): on HTTP/2 an upload overruns the window of its stream if
# the settings of the server do not contain the default.
#
# A reader expects: a stream has room for 65,535 bytes unless SETTINGS_INITIAL_WINDOW_SIZE says
# otherwise or a WINDOW_UPDATE of the stream adds some (RFC 9113 §6.9.2).
# What happens: without that setting, niquests sends as much as the window of the connection has
# room for, here 262,144 bytes. If the setting is there, also with the default, it is obeyed.
# Why it matters: a server that enlarges the window of the connection, and not that of each stream,
# must reset the upload with FLOW_CONTROL_ERROR or take what it has no room for.
#
# Needs: python3 with venv. Exit: 0 as recorded, 1 different, 2 could not be tried.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 2' INT TERM
cd "$dir"
python3 -m venv v || exit 2
timeout 240 v/bin/pip install --quiet --disable-pip-version-check niquests==3.21.2 jh2==5.0.15 ||
    exit 2

cat > try.py <<'PY'
import socket
import struct
import threading

import niquests

PREFACE_BYTES, DATA, SETTINGS, ACK = 24, 0, 4, 1


def serve(listener, settings):
    """Enlarges the window of the connection to 262,144 bytes, and counts what arrives."""
    connection, _ = listener.accept()
    connection.settimeout(3)
    source = connection.makefile("rb")
    source.read(PREFACE_BYTES)
    frame = lambda kind, flags, payload: (
        len(payload).to_bytes(3, "big") + bytes([kind, flags, 0, 0, 0, 0]) + payload
    )
    connection.sendall(frame(SETTINGS, 0, settings) + frame(8, 0, struct.pack(">I", 196_609)))
    try:
        while len(head := source.read(9)) == 9:
            length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            source.read(length)
            if kind == SETTINGS and not flags & ACK:
                connection.sendall(frame(SETTINGS, ACK, b""))
            counted.append(length if kind == DATA else 0)
    except OSError:
        pass


print("niquests", niquests.__version__)
for name, settings in [("no setting", b""), ("the default", struct.pack(">HI", 4, 65_535))]:
    counted = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener, settings))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        try:
            niquests.Session(disable_http1=True).put(url, data=b"x" * 300_000, timeout=2)
        except niquests.exceptions.RequestException:
            pass  # There is no response.
        thread.join()
    print(f"{name}: more than 65,535 bytes were sent: {sum(counted) > 65_535}")
PY
timeout 60 v/bin/python try.py | tee seen
cat > recorded <<'TEXT'
niquests 3.21.2
no setting: more than 65,535 bytes were sent: True
the default: more than 65,535 bytes were sent: False
TEXT
cmp -s seen recorded || { echo "different from what is recorded" >&2; exit 1; }
echo "as recorded"
