#!/bin/sh
# Rush 5.179.0 (npm, @microsoft/rush with its HTTP build cache): a miss takes three requests.
#
# A reader expects: the manual of @rushstack/rush-http-build-cache-plugin says that a result that is
# missing gets 404 or 403, so the project is built at once.
# What happens: with a credential, which the manual tells everyone to set, each 404 is taken for a
# passing failure. Rush waits 2.5 to 5 seconds, asks again, waits again, and asks a third time. A
# build in which ten projects depend on each other and one has changed waits for a minute or more.
# Without a credential Rush asks once, prints that there is none, and builds.
# Why it matters: such a server sees three times the misses, and its users find it slow. No response
# helps: 403 and 404 are treated alike, and anything else counts as a failure.
#
# Needs: python3, node (20.9 or later), npm, git. Exit: 0 as recorded, 1 different, 2 could not be
# tried.
set -eu

dir=$(mktemp -d)
server=
trap 'test -z "$server" || kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
trap 'exit 2' INT TERM
cd "$dir"
mkdir -p home tool work/one/config work/common/config/rush
export HOME="$dir/home"
timeout 240 npm install --silent --no-audit --no-fund --ignore-scripts --prefix tool \
    @microsoft/rush@5.179.0 || exit 2

cat > server.py <<'PY'
import http.server, os


class Cache(http.server.BaseHTTPRequestHandler):
    """A cache that has nothing. It notes each GET."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        with open("gets", "a") as file:
            file.write(self.path + "\n")
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Cache)
with open("port.new", "w") as file:
    file.write(str(server.server_port))
os.rename("port.new", "port")
server.serve_forever()
PY
timeout 600 python3 server.py & server=$!
tries=0
while ! test -s port; do
    tries=$((tries + 1)); test "$tries" -le 100 || exit 2
    sleep 0.1
done

cd work
cat > rush.json <<'JSON'
{"rushVersion": "5.179.0", "pnpmVersion": "9.15.9", "nodeSupportedVersionRange": ">=20.9.0",
 "projects": [{"packageName": "one", "projectFolder": "one"}]}
JSON
cat > common/config/rush/build-cache.json <<JSON
{"buildCacheEnabled": true, "cacheProvider": "http",
 "httpConfiguration": {"url": "http://127.0.0.1:$(cat ../port)/", "isCacheWriteAllowed": true}}
JSON
echo '{"useWorkspaces": true}' > common/config/rush/pnpm-config.json
cat > one/package.json <<'JSON'
{"name": "one", "version": "1.0.0", "scripts": {"build": "mkdir -p lib && echo one > lib/out"}}
JSON
cat > one/config/rush-project.json <<'JSON'
{"operationSettings": [{"operationName": "build", "outputFolderNames": ["lib"]}]}
JSON
printf 'node_modules\nlib\ntemp\n.rush\n*.log\n' > .gitignore
git init --quiet .
rush="timeout 200 ../tool/node_modules/.bin/rush"
$rush update > ../log 2>&1 || { cat ../log >&2; exit 2; }
git add .
git -c user.name=Ann -c user.email=ann@example.org commit --quiet -m one

echo "rush 5.179.0" > ../seen
for credential in "" "Bearer any"; do
    : > ../gets
    rm -rf one/lib common/temp/build-cache
    if test -n "$credential"; then export RUSH_BUILD_CACHE_CREDENTIAL="$credential"; fi
    $rush build > ../log 2>&1 || { cat ../log >&2; exit 2; }
    grep -q 'SUCCESS: 1 operation ' ../log || { cat ../log >&2; exit 2; }
    echo "credential '$credential': $(sort -u ../gets | wc -l) result, $(wc -l < ../gets) GET" \
        >> ../seen
    echo "one more line" >> one/changed
    git add .
done
cat ../seen
cat > ../recorded <<'TEXT'
rush 5.179.0
credential '': 1 result, 1 GET
credential 'Bearer any': 1 result, 3 GET
TEXT
cmp -s ../seen ../recorded || { echo "different from what is recorded" >&2; exit 1; }
echo "as recorded"
