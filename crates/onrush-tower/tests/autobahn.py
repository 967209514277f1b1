"""Runs cases of Autobahn against a WebSocket server that sends back each message. Arguments: its
URL, and patterns of cases; those that begin with `-` are left out. Prints a line for each case: its
number, the verdicts on messages and on the close, and what the server sent to close."""

import asyncio
import os
import sys

from kosoku import FailureError, run_fuzzingclient


async def main(url, *patterns):
    cases = [pattern for pattern in patterns if not pattern.startswith("-")]
    excluded = [pattern[1:] for pattern in patterns if pattern.startswith("-")]
    try:
        results = await run_fuzzingclient(url, cases, excluded, concurrency=4)
    except FailureError as failure:
        results = failure.results
    for result in results:
        print(result.case_id, result.behavior.value, result.behavior_close.value,
              result.remote_close_code, repr(result.remote_close_reason), sep="; ")


asyncio.run(main(*sys.argv[1:]))
sys.stdout.flush()
os._exit(0)  # kosoku 0.1.0 sometimes aborts while the interpreter ends.
