"""Uploads with tuspy: whole, in chunks, with checksums, and continued by another client.

Arguments: the URL of the server, a file to upload.
"""

import hashlib
import sys

import requests
from tusclient import client

url, path = sys.argv[1:]
content = open(path, "rb").read()
digest = hashlib.sha256(content).hexdigest()
tus = client.TusClient(url + "/tus/")


def check(name):
    found = requests.get(f"{url}/tus/{name}")
    assert found.status_code == 200, (name, found.status_code)
    assert hashlib.sha256(found.content).hexdigest() == digest, name
    assert found.headers["content-type"] == "text/x-test", found.headers


def uploader(name, **options):
    metadata = {"filename": name, "filetype": "text/x-test"}
    return tus.uploader(path, metadata=metadata, **options)


whole = uploader("whole")
whole.upload()
check("whole")

# Each chunk has a checksum (SHA-1).
chunks = uploader("chunks", chunk_size=100_000, upload_checksum=True)
chunks.upload()
check("chunks")

# Ended after two chunks, and continued by a client that knows only the URL.
first = uploader("continued", chunk_size=100_000)
first.upload_chunk()
first.upload_chunk()
assert first.offset == 200_000, first.offset
assert requests.get(f"{url}/tus/continued").status_code == 404
second = client.TusClient(url + "/tus/").uploader(path, url=first.url, chunk_size=150_000)
assert second.offset == 200_000, second.offset
second.upload()
check("continued")

print("done")
