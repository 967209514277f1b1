"""Large uploads on the page, which continue after interruptions, in a real browser. See `common`."""

import os
import re

from playwright.sync_api import expect

from common import MINUTE, URL, choose, is_accessible, path, run, said

PART = 8 << 20
LARGE_MIB = int(os.environ.get("ONRUSH_TEST_LARGE_MIB", "192"))
# 5 minutes for 192 MiB, because a loaded machine is slow.
UPLOAD_MAX = max(5 * MINUTE, 5 * MINUTE * LARGE_MIB // 192)


def outside(name, size):
    """A file of the visitor. Its content differs from part to part."""
    file_path = path("..", name)
    with open(file_path, "wb") as file:
        file.truncate(size)
        for at in range(0, size, PART):
            file.seek(at)
            file.write(b"%d!" % at)
            file.seek(min(at + PART // 2, size - 3))
            file.write(os.urandom(3))
    return file_path


def is_same(name, file_path):
    with open(path(name), "rb") as one, open(file_path, "rb") as other:
        while True:
            block = one.read(PART)
            if block != other.read(PART):
                return False
            if not block:
                return True


class Sent:
    """Counts the requests with parts, by offset."""

    def __init__(self, page):
        self.offsets = []
        self.page = page
        page.on("request", self.count)

    def count(self, request):
        if request.method == "PATCH" and request.headers.get("upload-complete") == "?0":
            assert request.headers["content-digest"].startswith("sha-256=:")
            self.offsets.append(int(request.headers["upload-offset"]))

    def end(self):
        self.page.remove_listener("request", self.count)
        return sorted(self.offsets)


def offset_of(route):
    return int(route.request.headers.get("upload-offset", "-1"))


def panel(page):
    return page.get_by_role("region", name="Uploads")


def is_forgotten(page):
    return page.evaluate("localStorage.getItem('onrush-unfinished')") in (None, "[]")


def parts_at_a_time(page):
    """Requests are held by the test, so that it sees how many there are."""
    file_path = outside("parallel.bin", 5 * PART + 77)
    page.goto(URL + "/large/")
    sent, held = Sent(page), []
    page.route("**/*upload-id=*", lambda route: held.append(offset_of(route)))
    choose(page, file_path)
    while len(held) < 3:
        page.wait_for_timeout(10)
    assert sorted(held) == [0, PART, 2 * PART]
    assert not os.path.exists(path("large/parallel.bin"))
    page.unroute("**/*upload-id=*")  # This sends them.
    said(page, "1 file uploaded")
    assert sent.end() == [at * PART for at in range(6)]
    assert is_same("large/parallel.bin", file_path) and is_forgotten(page)


def a_lost_or_damaged_part(page):
    """Only these parts are sent again."""
    file_path = outside("damaged.bin", 3 * PART)
    page.goto(URL + "/large/")
    sent, failures = Sent(page), {PART: "lost", 2 * PART: "damaged"}

    def fail(route):
        failure = failures.pop(offset_of(route), None)
        if failure == "lost":
            route.abort()
        elif failure == "damaged":
            # The digest is that of other bytes, as if some had changed.
            other = "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:"
            route.continue_(headers={**route.request.headers, "content-digest": other})
        else:
            route.continue_()

    page.route("**/*upload-id=*", fail)
    choose(page, file_path)
    said(page, "1 file uploaded")
    page.unroute("**/*upload-id=*")
    assert sent.end() == [0, PART, PART, 2 * PART, 2 * PART]
    assert is_same("large/damaged.bin", file_path)


def without_a_connection(page):
    file_path = outside("offline.bin", 6 * PART)
    page.goto(URL + "/large/")
    sent, passed = Sent(page), []

    def fail(route):
        offset = offset_of(route)
        if offset in (0, PART) or offset == 6 * PART:
            passed.append(offset)
            route.continue_()
        else:
            route.abort()

    page.route("**/*upload-id=*", fail)
    choose(page, file_path)
    expect(panel(page)).to_contain_text("waiting to try again")
    is_accessible(page, "an upload without a connection")
    expect(panel(page)).to_contain_text("The connection was lost.", timeout=MINUTE)
    while len(passed) < 2:
        page.wait_for_timeout(10)
    page.unroute("**/*upload-id=*")
    panel(page).get_by_role("button", name="Retry offline.bin").click()
    said(page, "1 file uploaded")
    offsets = sent.end()
    assert offsets.count(0) == 1 and offsets.count(PART) == 1, offsets
    assert is_same("large/offline.bin", file_path)


def pause_and_cancel(page):
    file_path = outside("paused.bin", 4 * PART)
    page.goto(URL + "/large/")
    sent, held = Sent(page), []
    page.route("**/*upload-id=*", lambda route: route.continue_()
               if offset_of(route) == 0 else held.append(route))
    choose(page, file_path)
    while len(held) < 3:
        page.wait_for_timeout(10)
    panel(page).get_by_role("button", name="Pause paused.bin").click()
    expect(panel(page)).to_contain_text("paused.bin: paused")
    page.unroute("**/*upload-id=*")
    panel(page).get_by_role("button", name="Resume paused.bin").click()
    said(page, "1 file uploaded")
    assert sent.end().count(0) == 1
    assert is_same("large/paused.bin", file_path)
    # A cancelled upload is removed from the server, too.
    os.rename(file_path, path("..", "cancelled.bin"))
    page.route("**/*upload-id=*", lambda route: route.continue_()
               if route.request.method == "DELETE" else held.append(route))
    with page.expect_request(lambda request: request.method == "PATCH"):
        choose(page, path("..", "cancelled.bin"))
    with page.expect_response(lambda response: response.request.method == "DELETE") as removed:
        panel(page).get_by_role("button", name="Cancel cancelled.bin").click()
    assert removed.value.status == 204
    page.unroute("**/*upload-id=*")
    assert is_forgotten(page) and not os.path.exists(path("large/cancelled.bin"))


def after_a_reload(page):
    size = LARGE_MIB << 20
    file_path = outside("film.bin", size)
    page.goto(URL + "/large/")
    choose(page, file_path)
    bar = panel(page).get_by_role("progressbar", name="film.bin")
    while (bar.evaluate("bar => bar.value") if bar.count() else 0) < size // 4:
        page.wait_for_timeout(20)
    page.reload()
    unfinished = page.get_by_role("list", name="Unfinished uploads")
    expect(unfinished).to_contain_text(re.compile(r"film.bin: [\d.]+ MiB of [\d.]+ .iB were uploaded"))
    is_accessible(page, "an unfinished upload")
    shown = unfinished.inner_text()
    arrived = round(float(re.search(r": ([\d.]+) MiB", shown)[1])) << 20
    assert arrived >= size // 8, shown
    sent = Sent(page)
    with page.expect_file_chooser() as chooser:
        unfinished.get_by_role("button", name="Continue film.bin").click()
    chooser.value.set_files(file_path)
    expect(page.get_by_role("status")).to_contain_text("1 file uploaded", timeout=UPLOAD_MAX)
    assert len(sent.end()) * PART <= size - arrived, "what has arrived is not sent again"
    assert is_same("large/film.bin", file_path) and is_forgotten(page)
    expect(unfinished).to_have_count(0)


def what_is_offered_after_a_reload(page):
    for name in ["kept.bin", "expired.bin", "discarded.bin"]:
        file_path = outside(name, 2 * PART)
        page.goto(URL + "/large/")
        page.route("**/*upload-id=*", lambda route: None)
        with page.expect_request(lambda request: request.method == "PATCH"):
            choose(page, file_path)
        page.goto("about:blank")
        page.unroute("**/*upload-id=*")  # This sends what waits, if its page is still there.
    page.goto(URL + "/large/")
    unfinished = page.get_by_role("list", name="Unfinished uploads")
    expect(unfinished.get_by_role("listitem")).to_have_count(3)
    unfinished.get_by_role("button", name="Discard discarded.bin").click()
    expect(unfinished.get_by_role("listitem")).to_have_count(2)
    expired = page.evaluate("JSON.parse(localStorage.getItem('onrush-unfinished'))"
                            ".find(({ name }) => name === 'expired.bin').upload.url")
    assert page.request.delete(expired).status == 204
    page.goto(URL + "/")
    expect(page.get_by_role("link", name="large/")).to_be_visible()
    assert unfinished.count() == 0, "it belongs to another folder"
    page.goto(URL + "/large/")
    expect(unfinished.get_by_role("listitem")).to_have_count(1)
    # Another file of the same name begins an upload of its own.
    with page.expect_request(lambda request: request.method == "PUT"):
        os.utime(path("..", "kept.bin"), (1, 1))
        choose(page, path("..", "kept.bin"))
    said(page, "1 file uploaded")
    expect(unfinished.get_by_role("listitem")).to_have_count(1)
    unfinished.get_by_role("button", name="Discard kept.bin").click()
    expect(unfinished).to_have_count(0)
    assert is_forgotten(page)


def without_a_digest_of_the_browser(browser):
    """As on a page over HTTP from another machine."""
    page = browser.new_page()
    page.add_init_script("Object.defineProperty(Crypto.prototype, 'subtle', { value: undefined })")
    page.goto(URL + "/large/")
    assert page.evaluate("crypto.subtle") is None
    for rest in [1, 55, 56, 64, 1_234_567]:
        file_path = outside("plain-%d" % rest, PART + rest)
        sent = Sent(page)
        choose(page, file_path)
        said(page, "1 file uploaded")
        expect(page.get_by_role("link", name="plain-%d" % rest, exact=True)).to_be_visible()
        assert sent.end() == [0, PART]
        assert is_same("large/plain-%d" % rest, file_path)
    page.close()


def main(page):
    os.makedirs(path("large"), exist_ok=True)
    page.on("dialog", lambda dialog: dialog.accept())  # Whether to leave the page.
    for test in [parts_at_a_time, a_lost_or_damaged_part, without_a_connection, pause_and_cancel,
                 what_is_offered_after_a_reload, after_a_reload]:
        print(test.__name__, flush=True)
        test(page)


run([main], [without_a_digest_of_the_browser])
