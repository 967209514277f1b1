"""The dashboard. Argument: the URL of a server with `--admin same`. Prints `done`. With a second
argument: writes a screenshot there."""

import re
import sys

from check import is_accessible, launch, problems_of
from playwright.sync_api import expect, sync_playwright

URL = sys.argv[1]
MINUTE = 60_000


def value(page, label):
    return page.locator("dl div").filter(has=page.locator("dt", has_text=re.compile(f"^{label}$"))).locator("dd")


def is_live(page):
    page.goto(URL + "/-/dashboard")
    expect(page.locator("#state")).to_contain_text("Live", timeout=MINUTE)
    expect(value(page, "Requests").first).to_contain_text("/s")
    for _ in range(200):
        page.request.get(URL + "/x.txt")
    expect(value(page, "Requests").first).not_to_have_text("0/s", timeout=MINUTE)
    expect(value(page, "Median latency")).to_contain_text("s", timeout=MINUTE)
    expect(page.locator("svg polyline").first).to_be_attached()
    expect(page.locator("tbody tr")).to_have_count(2)
    is_accessible(page, "the dashboard")
    page.route("**/-/metrics", lambda route: route.abort())
    expect(page.locator("#state")).to_contain_text("does not respond", timeout=MINUTE)
    page.unroute("**/-/metrics")
    expect(page.locator("#state")).to_contain_text("Live", timeout=MINUTE)


def without_script(browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(URL + "/-/dashboard")
    text = value(page, "Requests").first.inner_text()
    assert int(text) >= 200, text
    assert value(page, "Open").inner_text() != "0"
    context.close()


def small_screen(browser):
    page = browser.new_page(viewport={"width": 320, "height": 600})
    page.goto(URL + "/-/dashboard")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 320, f"the page is {width} wide"
    page.close()


with sync_playwright() as playwright:
    browser = launch(playwright)
    if len(sys.argv) > 2:
        page = browser.new_page(viewport={"width": 900, "height": 760}, device_scale_factor=1)
        page.goto(URL + "/-/dashboard")
        page.wait_for_timeout(60_000)
        page.screenshot(path=sys.argv[2])
    else:
        page = browser.new_page()
        problems = problems_of(page)
        is_live(page)
        assert not problems, problems
        without_script(browser)
        small_screen(browser)
    browser.close()
print("done")
