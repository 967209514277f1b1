"""The page of a folder in Firefox, which Marionette drives: uploads with progress, live changes and
downloads. Arguments: the URL of a server that permits everything, and the path of the folder that it
serves. Prints `done`."""

import hashlib
import os
import sys
import time

from marionette_driver import By, Wait
from marionette_driver.marionette import Marionette

URL, FOLDER = sys.argv[1:3]
MINUTE_S = 60
PROTOCOL = "h2" if URL.startswith("https:") else "http/1.1"
LARGE = os.urandom(1 << 20) * 100


def path(*names):
    return os.path.join(FOLDER, *names)


def expect(what, found, expected):
    if found != expected:
        raise AssertionError(f"{what}: {found!r:.200} instead of {expected!r:.200}")


def until(client, what, condition):
    Wait(client, timeout=5 * MINUTE_S, interval=0.02).until(lambda _: condition(), message=what)


def evaluate(client, script):
    """What the body of an asynchronous function returns, which runs as a script of the page."""
    return client.execute_script(f"return (async () => {{ {script} }})()", sandbox=None,
                                 script_timeout=5 * MINUTE_S * 1000)


def shown(client, name):
    found = client.find_elements(By.LINK_TEXT, name)
    return bool(found) and found[0].is_displayed()


def is_loaded_by_the_protocol(client):
    client.navigate(URL + "/")
    loaded = evaluate(client, "return performance.getEntriesByType('navigation')[0].nextHopProtocol")
    expect("the protocol", loaded, PROTOCOL)


def uploads_with_progress(client):
    """The bar has several values in between, and what arrives is what was sent."""
    large, small = path("..", "large.bin"), path("..", "small.txt")
    for name, content in [(large, LARGE), (small, b"small")]:
        with open(name, "wb") as file:
            file.write(content)
    evaluate(client, """
        window.seen = new Set();
        const look = () => {
            const bar = document.querySelector('progress');
            if (bar) window.seen.add(bar.value);
            requestAnimationFrame(look);
        };
        look();
    """)
    picker = client.find_element(By.CSS_SELECTOR, "input[type=file]")
    picker.send_keys(large)
    until(client, "the large file", lambda: shown(client, "large.bin"))
    values = evaluate(client, "return [...window.seen].sort((one, other) => one - other)")
    between = [value for value in values if 0 < value < len(LARGE)]
    expect("several values between", len(between) > 1, True)
    picker.send_keys(small)
    until(client, "the small file", lambda: shown(client, "small.txt"))
    for name, content in [("large.bin", LARGE), ("small.txt", b"small")]:
        with open(path(name), "rb") as file:
            expect(name, file.read() == content, True)


def downloads(client):
    digest = evaluate(client, """
        const response = await fetch('/large.bin', { cache: 'no-store' });
        const digest = await crypto.subtle.digest('SHA-256', await response.arrayBuffer());
        return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, '0')).join('');
    """)
    expect("the content", digest, hashlib.sha256(LARGE).hexdigest())
    entry = "return performance.getEntriesByName(location.origin + '/large.bin').pop().nextHopProtocol"
    expect("the protocol", evaluate(client, entry), PROTOCOL)
    # More at once than the server permits on a connection of HTTP/2.
    texts = evaluate(client, """
        const get = async (at) => (await fetch(`/small.txt?${at}`, { cache: 'no-store' })).text();
        return [...new Set(await Promise.all([...Array(300).keys()].map(get)))];
    """)
    expect("300 at once", texts, ["small"])
    saved = path("..", "saved")
    os.mkdir(saved)
    for name, value in [("dir", os.path.realpath(saved)), ("folderList", 2)]:
        client.set_pref("browser.download." + name, value)
    evaluate(client, """
        const link = Object.assign(document.createElement('a'), { href: '/large.bin', download: '' });
        document.body.append(link);
        link.click();
    """)
    whole = os.path.join(saved, "large.bin")
    until(client, "the download", lambda: os.path.exists(whole)
          and os.path.getsize(whole) == len(LARGE))
    with open(whole, "rb") as file:
        expect("what was saved", file.read() == LARGE, True)


def changes_appear(client):
    with open(path("made.txt"), "wb") as file:
        file.write(b"x")
    until(client, "a new file", lambda: shown(client, "made.txt"))
    os.remove(path("made.txt"))
    until(client, "its removal", lambda: not shown(client, "made.txt"))


client = Marionette(bin=os.environ.get("FIREFOX", "/usr/bin/firefox-esr"), headless=True,
                    startup_timeout=2 * MINUTE_S, gecko_log=os.devnull)
try:
    client.start_session({"acceptInsecureCerts": True})
    for test in [is_loaded_by_the_protocol, uploads_with_progress, downloads, changes_appear]:
        print(test.__name__, flush=True)
        test(client)
finally:
    client.cleanup()
print("done")
