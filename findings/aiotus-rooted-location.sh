#!/bin/sh
# aiotus 1.1.0 (PyPI, client of the tus protocol) does not resolve a relative `Location`.
#
# A reader expects: `Location` of the 201 is a URI reference (RFC 9110, 10.2.2), so `/uploads/1`
# means that path on the host that was asked, as a browser or tuspy takes it.
# What happens: aiotus hangs the path of the reference beneath the URL it posted to. A path that
# begins with a slash cannot be hung there: yarl raises an error, `upload` gives back None, and no
# byte of the file leaves the client, although the server has made the upload. A path without a
# slash works only by luck: with `Location: 1?key=k` the upload goes to `/files/1`, so the query
# is gone, and `files` stays, which RFC 3986 (5.2.3) would replace.
# Why it matters: a tus server that sends a rooted path is right and shorter, yet this
# client leaves an empty upload behind at each try. The full URL works with both.
#
# Needs: python3 with venv, PyPI. Exit: 0 as recorded, 1 different, 2 could not be tried.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 2' INT TERM
python3 -m venv "$dir/env" || exit 2
timeout 240 "$dir/env/bin/pip" -q --disable-pip-version-check install \
    aiotus==1.1.0 aiohttp==3.14.5 yarl==1.25.1 tuspy==1.1.0 || exit 2

cat > "$dir/try.py" <<'PY'
import asyncio, http.server, importlib.metadata, io, sys, threading
import aiotus
from tusclient.client import TusClient

location = ""
calls = []


class Tus(http.server.BaseHTTPRequestHandler):
    """Takes any upload of five bytes and names it by the `location` of the moment."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def respond(self, status, **headers):
        calls.append(f"{self.command} {self.path}")
        self.send_response(status)
        self.send_header("Tus-Resumable", "1.0.0")
        if status != 204:
            self.send_header("Content-Length", "0")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def do_POST(self):
        self.respond(201, Location=location)

    def do_HEAD(self):
        self.respond(200, Upload_Offset="0", Upload_Length="5")

    def do_PATCH(self):
        if "Content-Length" in self.headers:
            self.rfile.read(int(self.headers["Content-Length"]))
        else:
            while size := int(self.rfile.readline(), 16):
                self.rfile.read(size + 2)
            self.rfile.readline()
        self.respond(204, Upload_Offset="5")


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tus)
threading.Thread(target=server.serve_forever, daemon=True).start()
origin = f"http://127.0.0.1:{server.server_port}"
for name in ("aiotus", "tuspy"):
    print(name, importlib.metadata.version(name))

seen = {}
for location in (origin + "/uploads/1?key=k", "/uploads/1?key=k", "1?key=k"):
    shown = location.replace(origin, "http://HOST")
    calls.clear()
    result = asyncio.run(aiotus.upload(origin + "/files", io.BytesIO(b"hello")))
    seen["aiotus", shown] = (result is not None, calls[-1])
    calls.clear()
    TusClient(origin + "/files").uploader(file_stream=io.BytesIO(b"hello")).upload()
    seen["tuspy", shown] = (True, calls[-1])
for (client, shown), (done, last) in seen.items():
    print(f"{client}: Location: {shown}: {'done' if done else 'failed'}, last request {last}")

recorded = {
    ("aiotus", "http://HOST/uploads/1?key=k"): (True, "PATCH /uploads/1?key=k"),
    ("aiotus", "/uploads/1?key=k"): (False, "POST /files"),
    ("aiotus", "1?key=k"): (True, "PATCH /files/1"),
    ("tuspy", "http://HOST/uploads/1?key=k"): (True, "PATCH /uploads/1?key=k"),
    ("tuspy", "/uploads/1?key=k"): (True, "PATCH /uploads/1?key=k"),
    ("tuspy", "1?key=k"): (True, "PATCH /1?key=k"),
}
if seen != recorded:
    sys.exit("different from what is recorded")
print("as recorded")
PY
timeout 60 "$dir/env/bin/python" "$dir/try.py" || { echo "the try failed or differs" >&2; exit 1; }
