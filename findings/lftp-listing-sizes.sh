#!/bin/sh
# lftp 4.9.2-2 (Debian 12): `mirror` with `http:use-propfind` stores the first 64 KiB of larger
# files and exits with 0, if the listing has sizes such as "2.9 MiB".
#
# A reader expects: a mirrored file has the bytes of the response, whose Content-Length says how
# many there are.
# What happens: with the option, lftp asks for the properties of each file by PROPFIND on one
# connection, and still ends each transfer after its first buffer, although both the properties and
# the Content-Length say 3,000,000. Without the option (the default), it asks by HEAD, and the files
# are whole.
# Why it matters: a listing for people takes part in what a program stores, and the exit code hides
# it. Only a comparison of the files shows the loss.
#
# Needs: python3, a Debian 12 with the libraries of lftp (the package itself is only unpacked in the
# temporary folder). Exit: 0 as recorded, 1 different, 2 could not be tried.
set -eu

dir=$(mktemp -d)
server=
trap 'test -z "$server" || kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
trap 'exit 2' INT TERM
cd "$dir"
timeout 120 apt-get -qq -o APT::Sandbox::User=root download lftp=4.9.2-2+b1 || exit 2
for package in ./*.deb; do
    dpkg -x "$package" root
done
HOME=$dir
export HOME
lftp=$dir/root/usr/bin/lftp
"$lftp" --version > version 2>&1 || { cat version >&2; exit 2; }

cat > server.py <<'PY'
import http.server, os

CONTENT = bytes(3_000_000)
NAMES = ["a.bin", "b.bin"]
TIME = "Sat, 28 Nov 2026 10:47:45 GMT"


class Folders(http.server.BaseHTTPRequestHandler):
    """A folder of two files."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", TIME)
        self.end_headers()
        if self.command != "HEAD":
            try:
                self.wfile.write(body)
            except ConnectionError:
                self.close_connection = True

    def do_GET(self):
        if not self.path.endswith("/"):
            return self.answer(200, "application/octet-stream", CONTENT)
        rows = "".join(
            f'<tr><td><a href="{name}">{name}</a></td><td>2.9 MiB</td>'
            "<td>2026-11-28 10:47</td></tr>" for name in NAMES)
        page = f"<html><title>Index of {self.path}</title><table>{rows}</table></html>"
        self.answer(200, "text/html", page.encode())

    do_HEAD = do_GET

    def do_PROPFIND(self):
        kind = "<D:resourcetype><D:collection/></D:resourcetype>"
        if not self.path.endswith("/"):
            kind = (f"<D:getcontentlength>{len(CONTENT)}</D:getcontentlength>"
                    f"<D:getlastmodified>{TIME}</D:getlastmodified><D:resourcetype/>")
        text = ('<?xml version="1.0" encoding="utf-8"?><D:multistatus xmlns:D="DAV:"><D:response>'
                f"<D:href>{self.path}</D:href><D:propstat><D:prop>{kind}</D:prop>"
                "<D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response></D:multistatus>")
        self.answer(207, "application/xml; charset=utf-8", text.encode())


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Folders)
with open("port.new", "w") as file:
    file.write(str(server.server_port))
os.rename("port.new", "port")
server.serve_forever()
PY
timeout 240 python3 server.py & server=$!
tries=0
while ! test -s port; do
    tries=$((tries + 1)); test "$tries" -le 100 || exit 2
    sleep 0.1
done

{
    sed -n '1s/ | Copyright.*//p' version
    for propfind in no yes; do
        rm -rf copy
        code=0
        timeout 50 "$lftp" --norc -c "set http:use-propfind $propfind;
            mirror http://127.0.0.1:$(cat port)/folder copy" > out 2>&1 || code=$?
        echo "use-propfind $propfind: exit code $code, of 3000000 bytes" \
            "$(wc -c < copy/a.bin) and $(wc -c < copy/b.bin)"
    done
} | tee seen
cat > recorded <<'TEXT'
LFTP | Version 4.9.2
use-propfind no: exit code 0, of 3000000 bytes 3000000 and 3000000
use-propfind yes: exit code 0, of 3000000 bytes 65536 and 65536
TEXT
cmp -s seen recorded || { echo "different from what is recorded" >&2; exit 1; }
echo "as recorded"
