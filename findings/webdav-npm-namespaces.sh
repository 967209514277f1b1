#!/bin/sh
# webdav 5.11.0 (npm, client of WebDAV): a dead property can turn a folder into a file.
#
# A reader expects: the name of a property is a namespace and a local name (RFC 4918, 4.5), so a
# property `resourcetype` of the namespace `urn:example` has nothing to do with that of `DAV:`.
# What happens: the client looks at local names only. Two properties with the same local name
# become a list, and `stat` reads a list wrong: the folder becomes a file, and a file with a
# foreign `getetag` loses its entity tag. A foreign `getcontentlength` does no harm if it comes
# second, as a list that is parsed as a number gives its first entry. The manual of the package
# says that the methods of the client use bare names; it does not say that types change.
# Why it matters: the client asks with an empty PROPFIND, so it gets all dead properties that some
# other program has set by PROPPATCH. One stored property changes what this client takes a folder
# for. The server has to list it (RFC 4918, 9.1), so it cannot help.
#
# Needs: python3, node, npm. Exit: 0 as recorded, 1 different, 2 could not be tried.
set -eu

dir=$(mktemp -d)
server=
trap 'test -z "$server" || kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
trap 'exit 2' INT TERM
cd "$dir"
echo '{"private": true}' > package.json
timeout 240 npm install --silent --no-audit --no-fund --ignore-scripts webdav@5.11.0 || exit 2

cat > server.py <<'PY'
import http.server, os

FOLDER = "<D:resourcetype><D:collection/></D:resourcetype>"
FILE = '<D:resourcetype/><D:getcontentlength>11</D:getcontentlength><D:getetag>"one"</D:getetag>'
OTHER = {"resourcetype": "photo album", "getetag": "two", "getcontentlength": "99"}
BODY = """<?xml version="1.0" encoding="utf-8"?>
<D:multistatus xmlns:D="DAV:" xmlns:x="urn:example"><D:response><D:href>{}</D:href>
<D:propstat><D:prop>{}{}<D:getlastmodified>Sat, 01 Mar 2025 10:00:00 GMT</D:getlastmodified>
</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response></D:multistatus>"""


class Dav(http.server.BaseHTTPRequestHandler):
    """`/dav/KIND/NAME` is a folder or file with the dead property NAME of `urn:example`."""
    def log_message(self, *args):
        pass

    def do_PROPFIND(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        _, kind, extra = self.path.strip("/").split("/")
        dead = f"<x:{extra}>{OTHER[extra]}</x:{extra}>" if extra in OTHER else ""
        body = BODY.format(self.path, FOLDER if kind == "folder" else FILE, dead).encode()
        self.send_response(207)
        self.send_header("Content-Type", "application/xml; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dav)
with open("port.new", "w") as file:
    file.write(str(server.server_port))
os.rename("port.new", "port")
server.serve_forever()
PY
cat > stat.mjs <<'JS'
import { readFileSync } from 'node:fs'
import { createClient } from 'webdav'

console.log('webdav', JSON.parse(readFileSync('node_modules/webdav/package.json')).version)
const client = createClient(`http://127.0.0.1:${process.argv[2]}`)
for (const path of ['folder/none', 'folder/resourcetype',
  'file/none', 'file/getetag', 'file/getcontentlength']) {
  const { type, size, etag } = await client.stat(`/dav/${path}`)
  console.log(`${path}: type ${type}, size ${size}, etag ${etag}`)
}
JS
timeout 120 python3 server.py & server=$!
tries=0
while ! test -s port; do
    tries=$((tries + 1)); test "$tries" -le 100 || exit 2
    sleep 0.1
done

timeout 60 node stat.mjs "$(cat port)" | tee seen
cat > recorded <<'TEXT'
webdav 5.11.0
folder/none: type directory, size 0, etag null
folder/resourcetype: type file, size 0, etag null
file/none: type file, size 11, etag one
file/getetag: type file, size 11, etag null
file/getcontentlength: type file, size 11, etag one
TEXT
cmp -s seen recorded || { echo "different from what is recorded" >&2; exit 1; }
echo "as recorded"
