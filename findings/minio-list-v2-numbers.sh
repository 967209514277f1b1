#!/bin/sh
# minio 8.0.7 (npm, client of S3): `listObjectsV2` changes the names of keys that look like numbers.
#
# A reader expects: `<Key>007</Key>` in a listing is the text `007`, as a key is a string.
# What happens: the XML parser behind version 2 of the listing guesses types, so the key passes
# through a JavaScript number and back: `007` becomes `7`, `0x1F` becomes `31`, `1.50` becomes
# `1.5`, and `0` becomes the empty name. A key with any other character stays whole. `listObjects`
# (version 1) of the same package reads the same response right.
# Why it matters: a key that is listed and then fetched gives 404, which looks like a fault of the
# server. Names of such a shape are usual: counters with leading zeros, versions such as 1.10.
# The client asks for `encoding-type=url` and decodes names after the guess, so a server can keep
# such a name whole if it percent-encodes a digit: `%3012` is read as `012`.
#
# Needs: python3, node, npm. Exit: 0 as recorded, 1 different, 2 could not be tried.
set -eu

dir=$(mktemp -d)
server=
trap 'test -z "$server" || kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
trap 'exit 2' INT TERM
cd "$dir"
echo '{"private": true}' > package.json
timeout 240 npm install --silent --no-audit --no-fund --ignore-scripts minio@8.0.7 || exit 2

cat > server.py <<'PY'
import http.server, os

KEYS = ["007", "0x1F", "1.50", "0", "42", "7a", "2024/01", "%3012"]
ENTRY = ("<Contents><Key>{}</Key><LastModified>2025-03-01T10:00:00.000Z</LastModified>"
         "<ETag>&quot;5d41402abc4b2a76b9719d911017c592&quot;</ETag><Size>5</Size>"
         "<StorageClass>STANDARD</StorageClass></Contents>")
BODY = ('<?xml version="1.0" encoding="UTF-8"?>'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>'
        f"<Prefix></Prefix><KeyCount>{len(KEYS)}</KeyCount><MaxKeys>1000</MaxKeys>"
        "<EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>"
        + "".join(map(ENTRY.format, KEYS)) + "</ListBucketResult>").encode()


class Bucket(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
with open("port.new", "w") as file:
    file.write(str(server.server_port))
os.rename("port.new", "port")
server.serve_forever()
PY
cat > list.js <<'JS'
const { Client } = require('minio')
const client = new Client({
  endPoint: '127.0.0.1', port: Number(process.argv[2]), useSSL: false,
  accessKey: 'any', secretKey: 'any', region: 'us-east-1',
})
const names = (method) => new Promise((resolve, reject) => {
  const found = []
  client[method]('bucket', '', true)
    .on('data', (item) => found.push(item.name)).on('error', reject)
    .on('end', () => resolve(`${method}: ${JSON.stringify(found)}`))
})
console.log('minio', require('./node_modules/minio/package.json').version)
names('listObjects').then(console.log).then(() => names('listObjectsV2')).then(console.log)
JS
timeout 120 python3 server.py & server=$!
tries=0
while ! test -s port; do
    tries=$((tries + 1)); test "$tries" -le 100 || exit 2
    sleep 0.1
done

timeout 60 node list.js "$(cat port)" | tee seen
cat > recorded <<'TEXT'
minio 8.0.7
listObjects: ["007","0x1F","1.50","0","42","7a","2024/01","012"]
listObjectsV2: ["7","31","1.5","","42","7a","2024/01","012"]
TEXT
cmp -s seen recorded || { echo "different from what is recorded" >&2; exit 1; }
echo "as recorded"
