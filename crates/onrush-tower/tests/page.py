"""Uses the page of a chat in Chromium. Argument: its URL. Prints `done`."""

import sys

from check import launch
from playwright.sync_api import expect, sync_playwright

URL = sys.argv[1]
MINUTE = 60_000
expect.set_options(timeout=MINUTE)  # A loaded machine is slow.


def join(browser):
    page = browser.new_page(ignore_https_errors=True)
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(URL)
    expect(page.get_by_role("status")).to_have_text("joined chat")
    page.wait_for_function("opened > 0", timeout=MINUTE)
    page.problems = problems
    return page


def heard(page, text):
    """By both ways."""
    for way in ["socket", "events"]:
        expect(page.locator(f"#{way} li").filter(has_text=text)).to_have_count(1)


def say(page, text):
    page.get_by_role("textbox").fill(text)
    page.get_by_role("button", name="Say").click()


with sync_playwright() as playwright:
    browser = launch(playwright)
    pages = [join(browser) for _ in range(3)]

    print("messages reach everybody", flush=True)
    say(pages[0], "first <b>é")
    say(pages[1], "second")
    for page in pages:
        heard(page, "first <b>é")
        heard(page, "second")

    print("a request of the page", flush=True)
    pages[2].get_by_role("button", name="Post").click()
    expect(pages[2].get_by_role("status")).to_have_text("posted 200 3")
    for page in pages:
        heard(page, "posted")

    print("many messages are in order", flush=True)
    pages[0].evaluate("for (let at = 0; at < 200; at++) socket.send('many ' + at)")
    for page in pages:
        for way, prefix in [("socket", 0), ("events", 1)]:
            items = page.locator(f"#{way} li").filter(has_text="many")
            expect(items).to_have_count(200)
            texts = [" ".join(text.split()[prefix:]) for text in items.all_inner_texts()]
            assert texts == [f"many {at}" for at in range(200)], texts

    print("large binary messages", flush=True)
    pages[1].evaluate("socket.send(new Uint8Array(1_000_000).map((_, at) => at % 251))")
    pages[1].wait_for_function("window.binary?.length === 1_000_000", timeout=MINUTE)
    assert pages[1].evaluate("binary.every((byte, at) => byte === at % 251)")

    print("events that end are continued", flush=True)
    before = pages[0].evaluate("opened")
    say(pages[1], "end")  # The server ends the events behind this message.
    say(pages[1], "after the end")
    for page in pages:
        heard(page, "after the end")
    pages[0].wait_for_function(f"opened > {before}", timeout=MINUTE)
    numbers = [int(text.split()[0]) for text in pages[0].locator("#events li").all_inner_texts()]
    assert numbers == list(range(1, 206)), numbers

    print("leaving", flush=True)
    pages[0].get_by_role("button", name="Leave").click()
    expect(pages[0].get_by_role("status")).to_have_text("left 4001 enough true")
    heard(pages[1], "one has left")
    say(pages[1], "out")  # The server closes.
    expect(pages[1].get_by_role("status")).to_have_text("left 4002 as you wish true")
    pages[1].close()
    expect(pages[2].locator("#socket li").filter(has_text="one has left")).to_have_count(2)
    assert not any(page.problems for page in pages), [page.problems for page in pages]
    browser.close()
print("done")
