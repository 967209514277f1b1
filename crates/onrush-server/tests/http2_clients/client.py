"""Clients of HTTP/2 in Python: `httpx`, or `libcurl` by pycurl.

Arguments: the name, the URL of a server that permits PUT, the file of its authority, the URL of a
server with users, and the process of the first one. The last requests run while that process
restarts. Prints `done`.
"""

import io
import os
import signal
import sys
import threading

NAME, BASE, AUTHORITY, GUARDED, PROCESS = sys.argv[1:6]
PIECE = 1 << 18
CONTENT = os.urandom(1 << 20) * 40
WAIT_S = 60


def pieces(pause):
    """The content. `pause` is called when a part of it was taken."""
    for at in range(0, len(CONTENT), PIECE):
        if at == 8 * PIECE:
            pause()
        yield CONTENT[at : at + PIECE]


class Httpx:
    def __init__(self):
        import ssl

        import httpx

        trusted = ssl.create_default_context(cafile=AUTHORITY)
        self.client = httpx.Client(http2=True, verify=trusted, timeout=WAIT_S)

    def get(self, url, pause=lambda: None, **fields):
        with self.client.stream("GET", url, headers=fields) as response:
            assert response.http_version == "HTTP/2"
            parts = response.iter_bytes(PIECE)
            content = next(parts, b"")
            pause()
            return response.status_code, content + b"".join(parts)

    def put(self, url, pause=lambda: None):
        return self.client.put(url, content=pieces(pause)).status_code


class Libcurl:
    def __init__(self):
        import pycurl

        self.curl = pycurl.Curl()

    def perform(self, url, options):
        curl = self.curl
        curl.reset()
        curl.setopt(curl.URL, url)
        curl.setopt(curl.CAINFO, AUTHORITY)
        curl.setopt(curl.TIMEOUT, WAIT_S)
        for name, value in options.items():
            curl.setopt(getattr(curl, name), value)
        curl.perform()
        assert curl.getinfo(curl.INFO_HTTP_VERSION) == curl.CURL_HTTP_VERSION_2_0
        return curl.getinfo(curl.RESPONSE_CODE)

    def get(self, url, pause=lambda: None, **fields):
        content = bytearray()

        def write(data):
            if content and len(content) < PIECE <= len(content) + len(data):
                pause()
            content.extend(data)

        lines = [f"{name}: {value}" for name, value in fields.items()]
        status = self.perform(url, {"WRITEFUNCTION": write, "HTTPHEADER": lines})
        return status, bytes(content)

    def put(self, url, pause=lambda: None):
        source = io.BytesIO(b"")
        parts = pieces(pause)

        def read(size):
            nonlocal source
            data = source.read(size)
            if not data:
                source = io.BytesIO(next(parts, b""))
                data = source.read(size)
            return data

        lines = ["Expect:"]
        discard = lambda data: None
        options = {"UPLOAD": 1, "READFUNCTION": read, "HTTPHEADER": lines}
        return self.perform(url, {**options, "WRITEFUNCTION": discard})


Client = {"httpx": Httpx, "libcurl": Libcurl}[NAME]


def expect(what, found, expected):
    if found != expected:
        raise AssertionError(f"{what}: {found!r:.200} instead of {expected!r:.200}")


client = Client()
expect("PUT", client.put(BASE + "/large"), 201)
expect("GET", client.get(BASE + "/large") == (200, CONTENT), True)
part = client.get(BASE + "/large", Range="bytes=3-6")
expect("a range", part, (206, CONTENT[3:7]))
# The response comes before the body was sent.
for _ in range(3):
    expect("PUT without a password", client.put(GUARDED + "/x"), 401)

# A download, an upload and requests on a third connection, while the server restarts.
waiting = threading.Barrier(3, timeout=WAIT_S)
restarted = threading.Event()
problems = []


def pause():
    waiting.wait()
    restarted.wait(WAIT_S)


def attempt(what, work, expected):
    try:
        expect(what, work(), expected)
    except BaseException as problem:
        problems.append(f"{what}: {problem!r}")


others = Client()
expect("GET", others.get(BASE + "/x"), (200, b"content"))
down, up = Client(), Client()
threads = [
    threading.Thread(target=attempt, args=arguments)
    for arguments in [
        ("download", lambda: down.get(BASE + "/large", pause) == (200, CONTENT), True),
        ("upload", lambda: up.put(BASE + "/upload", pause), 201),
    ]
]
for thread in threads:
    thread.start()
waiting.wait()
os.kill(int(PROCESS), signal.SIGUSR2)
pauses = threading.Event()
for _ in range(300):
    expect("GET while it restarts", others.get(BASE + "/x"), (200, b"content"))
    pauses.wait(0.01)
restarted.set()
for thread in threads:
    thread.join(WAIT_S)
expect("problems", problems, [])
stored = client.get(BASE + "/upload") if NAME == "libcurl" else others.get(BASE + "/upload")
expect("what was uploaded", stored == (200, CONTENT), True)
print("done")
