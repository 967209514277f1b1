#!/bin/sh
# fsspec 2026.9.0 (PyPI): `cat_file(url, start, end)` does not look at which bytes came back.
#
# A reader expects: a server may ignore `Range` and send 200 with the whole file (RFC 9110,
# 14.2). The caller asked for bytes 1000 to 1009, so the client cuts them out or raises an error.
# What happens: the whole file comes back as if it were the range. The same library does check
# elsewhere: an opened file that is moved to byte 1000 raises ValueError on the same response.
# A 206 with only the first part of the range, which a client has to look out for (15.3.7), is
# given back as the complete range as well; its `Content-Range` says so and is not read.
# Why it matters: programs that read pieces of a large file (indexes, chunks, footers) get bytes
# of another place and no error. A server that drops ranges under some condition, such as a
# compressed response, does not fail for such a client: it misleads it.
#
# Needs: python3 with venv, PyPI. Exit: 0 as recorded, 1 different, 2 could not be tried.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 2' INT TERM
python3 -m venv "$dir/env" || exit 2
timeout 240 "$dir/env/bin/pip" -q --disable-pip-version-check install \
    fsspec==2026.9.0 aiohttp==3.14.5 || exit 2

cat > "$dir/try.py" <<'PY'
import http.server, sys, threading
import fsspec

CONTENT = b"".join(b"%07d\n" % number for number in range(1000))


class Files(http.server.BaseHTTPRequestHandler):
    """One content under three names: exact ranges, ranges of at most four bytes, no ranges."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        body, asked = CONTENT, self.headers.get("Range")
        if asked and self.path != "/none":
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            last = min(last, len(CONTENT) - 1, first + 3 if self.path == "/short" else last)
            body = CONTENT[first : last + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(CONTENT)}")
        else:
            self.send_response(200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
threading.Thread(target=server.serve_forever, daemon=True).start()
origin = f"http://127.0.0.1:{server.server_port}"
files = fsspec.filesystem("http")
print("fsspec", fsspec.__version__)


def moved(url):
    with files.open(url, block_size=16, cache_type="readahead") as file:
        file.seek(1000)
        return file.read(10)


def outcome(read):
    try:
        data = read()
    except Exception as error:
        return type(error).__name__
    if data == CONTENT:
        return "the whole file"
    if CONTENT[1000:1010].startswith(data):
        return f"{len(data)} right bytes"
    return f"{len(data)} other bytes"


seen = {}
for name in ("exact", "short", "none"):
    url = f"{origin}/{name}"
    seen[name] = (outcome(lambda: files.cat_file(url, 1000, 1010)), outcome(lambda: moved(url)))
    print(f"{name}: ten bytes by cat_file: {seen[name][0]}; by open and seek: {seen[name][1]}")

recorded = {
    "exact": ("10 right bytes", "10 right bytes"),
    "short": ("4 right bytes", "4 right bytes"),
    "none": ("the whole file", "ValueError"),
}
if seen != recorded:
    sys.exit("different from what is recorded")
print("as recorded")
PY
timeout 60 "$dir/env/bin/python" "$dir/try.py" || { echo "the try failed or differs" >&2; exit 1; }
