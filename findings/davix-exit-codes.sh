#!/bin/sh
# davix 0.8.4-3 (Debian 12): `davix-mv` ends with 255 and without a message after a MOVE that has
# succeeded, and `--userlogin` never answers a 401.
#
# A reader expects: 201 and 204 say that the resource was moved (RFC 4918 §9.9.4), so the program
# ends with 0. A user and a password are sent when the server asks for them by 401 with
# `WWW-Authenticate: Basic` (RFC 9110 §11.6).
# What happens: after 200, 201 and 204 the program ends with 255 and says nothing; after 403 it ends
# with 255 and says why. After 401 it asks three times more, and never with the password.
# Why it matters: a script repeats or undoes a move that was made, and a server that knows its users
# by passwords cannot be used.
#
# Needs: python3, a Debian 12 with libcurl4, libgsoap-2.8.124, libxml2 and libuuid1 (the packages of
# davix are only unpacked in the temporary folder). Exit: 0 as recorded, 1 different, 2 could not be
# tried.
set -eu

dir=$(mktemp -d)
server=
trap 'test -z "$server" || kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
trap 'exit 2' INT TERM
cd "$dir"
timeout 120 apt-get -qq -o APT::Sandbox::User=root download davix=0.8.4-3 libdavix0v5=0.8.4-3 ||
    exit 2
for package in ./*.deb; do
    dpkg -x "$package" root
done
HOME=$dir
LD_LIBRARY_PATH=$(dirname "$(find "$dir/root" -name libdavix.so.0)")
export HOME LD_LIBRARY_PATH
"$dir/root/usr/bin/davix-mv" --version > version 2>&1 || { cat version >&2; exit 2; }

cat > server.py <<'PY'
import http.server, os


class Moves(http.server.BaseHTTPRequestHandler):
    """The status of a MOVE is the last part of its path. A GET needs a password."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, *fields):
        self.send_response(status)
        for name, value in fields:
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", "0")
        self.end_headers()

    def do_MOVE(self):
        self.answer(int(self.path.rsplit("/", 1)[1]))

    def do_GET(self):
        with open("requests", "a") as file:
            file.write(("with" if self.headers["Authorization"] else "without") + "\n")
        self.answer(401, ("WWW-Authenticate", 'Basic realm="x"'))

    do_HEAD = do_GET


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Moves)
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

url=http://127.0.0.1:$(cat port)
{
    head -n 1 version
    for status in 200 201 204 403; do
        code=0
        timeout 50 "$dir/root/usr/bin/davix-mv" "$url/$status" "$url/to" > out 2>&1 || code=$?
        echo "MOVE answered with $status: exit code $code, lines of output $(wc -l < out)"
    done
    timeout 50 "$dir/root/usr/bin/davix-get" --userlogin user --userpass word "$url/x" > out 2>&1 ||
        true
    echo "requests of one GET: $(wc -l < requests), with a password: $(grep -cx with requests || :)"
} | tee seen
cat > recorded <<'TEXT'
Version: 0.8.4
MOVE answered with 200: exit code 255, lines of output 0
MOVE answered with 201: exit code 255, lines of output 0
MOVE answered with 204: exit code 255, lines of output 0
MOVE answered with 403: exit code 255, lines of output 1
requests of one GET: 4, with a password: 0
TEXT
cmp -s seen recorded || { echo "different from what is recorded" >&2; exit 1; }
echo "as recorded"
