#!/bin/sh
# wget2 1.99.1-2.2 (Debian 12): `-c` can end with exit code 0 and a file that is too short.
#
# A reader expects: `-c` goes on with a partial download, or fails, or begins again.
# What happens: wget2 offers gzip and other codings also when it resumes, and unpacks what comes.
# The file on disk therefore counts unpacked bytes, but `Range` counts bytes of the selected
# representation, the packed one (RFC 9110, 14.2). With text, half of the file is longer than all
# of the packed one, so the server is right to send 416. wget2 exits with 0 and leaves the file
# as it is, although the `Content-Range` of the 416 names a length that is not that of the file.
# With the same server and a name that is never packed, `-c` completes the file.
# Why it matters: ranges over packed content are correct and yet break a common tool without a
# sign. A server that sends unpacked content to requests with `Range` is safe from it.
#
# Needs: python3, a Debian 12 with the libraries of wget2 (the two packages themselves are only
# unpacked in the temporary folder). Exit: 0 as recorded, 1 different, 2 could not be tried.
set -eu

dir=$(mktemp -d)
server=
trap 'test -z "$server" || kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
trap 'exit 2' INT TERM
cd "$dir"
timeout 120 apt-get -qq -o APT::Sandbox::User=root download \
    wget2=1.99.1-2.2 libwget0=1.99.1-2.2 || exit 2
for package in ./*.deb; do
    dpkg -x "$package" root
done
LD_LIBRARY_PATH=$(dirname "$(find "$dir/root" -name libwget.so.0)")
export LD_LIBRARY_PATH
HOME=$dir
export HOME
wget2="$dir/root/usr/bin/wget2"
"$wget2" --version > version 2>&1 || { cat version >&2; exit 2; }

cat > server.py <<'PY'
import gzip, http.server, os

TEXT = b"".join(b"line %d of a text that packs well\n" % number for number in range(20000))
PACKED = gzip.compress(TEXT, mtime=0)


class Files(http.server.BaseHTTPRequestHandler):
    """The text, as gzip for clients that take it, with ranges over what is sent."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        packed = self.path == "/packed" and "gzip" in self.headers.get("Accept-Encoding", "")
        body = PACKED if packed else TEXT
        length, status, asked = len(body), 200, self.headers.get("Range")
        if asked:
            first = int(asked.removeprefix("bytes=").split("-")[0])
            status, body = (206, body[first:]) if first < length else (416, b"")
        with open("log", "a") as log:
            log.write(f"{self.path}: Range {asked}, status {status}\n")
        self.send_response(status)
        self.send_header("Vary", "Accept-Encoding")
        if packed and status != 416:
            self.send_header("Content-Encoding", "gzip")
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{length - 1}/{length}")
        if status == 416:
            self.send_header("Content-Range", f"bytes */{length}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


with open("text", "wb") as file:
    file.write(TEXT)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
with open("port.new", "w") as file:
    file.write(str(server.server_port))
os.rename("port.new", "port")
server.serve_forever()
PY
timeout 120 python3 server.py & server=$!
tries=0
while ! test -s port; do
    tries=$((tries + 1)); test "$tries" -le 100 || exit 2
    sleep 0.1
done

{
    sed -n '1s/ - .*//p' version
    for name in plain packed; do
        head -c 400000 text > "$name"
        code=0
        timeout 30 "$wget2" -q -c "http://127.0.0.1:$(cat port)/$name" || code=$?
        echo "$name: exit code $code, $(wc -c < "$name") of $(wc -c < text) bytes"
    done
    cat log
} | tee seen
cat > recorded <<'TEXT'
GNU Wget2 1.99.1
plain: exit code 0, 728890 of 728890 bytes
packed: exit code 0, 400000 of 728890 bytes
/plain: Range bytes=400000-, status 206
/packed: Range bytes=400000-, status 416
TEXT
cmp -s seen recorded || { echo "different from what is recorded" >&2; exit 1; }
echo "as recorded"
