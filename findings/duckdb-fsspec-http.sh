#!/bin/sh
# DuckDB 2.0.1 (PyPI) with fsspec 2026.9.0: `register_filesystem` of fsspec's `http` reads nothing.
#
# A reader expects: DuckDB reads a Parquet file at a URL through a file system of fsspec that was
# registered with the connection, as its extension httpfs does. `Last-Modified` of the response
# says when the file was changed.
# What happens: DuckDB asks the file system for that time (`modified`), and the class for HTTP has
# no such method, whatever the server sends. The query fails with NotImplementedException, after
# the head of the file has been asked for. The same file is read through a pyarrow dataset.
# Why it matters: where the extension cannot be fetched, this is what people try next, and the log
# of the server shows requests that all succeed.
#
# Needs: python3 with venv, PyPI. Exit: 0 as recorded, 1 different, 2 could not be tried.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 2' INT TERM
python3 -m venv "$dir/env" || exit 2
timeout 240 "$dir/env/bin/pip" -q --disable-pip-version-check install \
    duckdb==2.0.1 fsspec==2026.9.0 aiohttp==3.14.5 pyarrow==26.0.1 || exit 2

cat > "$dir/try.py" <<'PY'
import http.server, io, sys, threading
import duckdb, fsspec, pyarrow, pyarrow.dataset, pyarrow.parquet

buffer = io.BytesIO()
pyarrow.parquet.write_table(pyarrow.table({"id": list(range(1000))}), buffer)
CONTENT = buffer.getvalue()
statuses = []


class Files(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        body, asked = CONTENT, self.headers.get("Range")
        if asked:
            first, last = asked.removeprefix("bytes=").split("-")
            last = min(int(last), len(CONTENT) - 1)
            body = CONTENT[int(first) : last + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(CONTENT)}")
        else:
            self.send_response(200)
        statuses.append(206 if asked else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Last-Modified", "Sat, 28 Nov 2026 08:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            try:
                self.wfile.write(body)
            except OSError:
                pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/numbers.parquet"
files = fsspec.filesystem("http")
print("duckdb", duckdb.__version__, "fsspec", fsspec.__version__)


def registered():
    connection = duckdb.connect()
    connection.register_filesystem(files)
    query = f"select sum(id) from read_parquet('{url}')"
    return connection.sql(query).fetchall()[0][0]


def dataset():
    numbers = pyarrow.dataset.dataset(url, filesystem=files)
    return duckdb.sql("select sum(id) from numbers").fetchall()[0][0]


def outcome(read):
    try:
        return int(read())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


seen = (outcome(registered), bool(statuses), outcome(dataset))
print(f"registered: {seen[0]}; requests were made: {seen[1]}; dataset: {seen[2]}")
expected = "modified() is not implemented" in str(seen[0]) and seen[1:] == (True, 499500)
if not expected:
    sys.exit("different from what is recorded")
print("as recorded")
PY
timeout 60 "$dir/env/bin/python" "$dir/try.py" || { echo "the try failed or differs" >&2; exit 1; }
