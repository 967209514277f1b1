"""What the tests of the page share: the folder of the server, the rows of the page, and the browser.
Arguments: the URL of a server, and the path of the folder that it serves."""

import os
import sys

from playwright.sync_api import expect, sync_playwright

from check import has_version, is_accessible, launch, problems_of

URL, FOLDER = sys.argv[1:3]
MINUTE = 60_000
expect.set_options(timeout=MINUTE)  # A loaded machine is slow.


def path(*names):
    return os.path.join(FOLDER, *names)


def make(name, content=b"content"):
    os.makedirs(os.path.dirname(path(name)), exist_ok=True)
    with open(path(name), "wb") as file:
        file.write(content)


def content(name):
    with open(path(name), "rb") as file:
        return file.read()


def names(page):
    return page.locator("tbody tr:visible td:first-child").all_inner_texts()


def row(page, name):
    link = page.get_by_role("link", name=name, exact=True)
    return page.locator("tbody tr").filter(has=link)


def act(page, name, action):
    row(page, name).get_by_role("button").click()
    page.get_by_role("dialog").get_by_role("button", name=action, exact=True).click()


def said(page, text):
    expect(page.get_by_role("status")).to_contain_text(text, timeout=MINUTE)


def choose(page, files, button="Upload files"):
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name=button).click()
    chooser.value.set_files(files)


def run(tests, more=()):
    """Runs tests with one page, and those in `more` with the browser. Prints `done`."""
    with sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page()
        problems = problems_of(page)
        for test in tests:
            print(test.__name__, flush=True)
            test(page)
            assert not problems, problems
        has_version(page)
        for test in more:
            print(test.__name__, flush=True)
            test(browser)
        browser.close()
    print("done")
