"""What the tests of the page share: the folder of the server, the rows of the page, and the browser.
Arguments: the URL of a server, and the path of the folder that it serves."""

import os
import sys

from playwright.sync_api import expect, sync_playwright

URL, FOLDER = sys.argv[1:3]
MINUTE = 60_000
expect.set_options(timeout=MINUTE)  # A loaded machine is slow.
AXE = os.path.join(os.path.dirname(__import__("axe_playwright_python").__file__), "axe.min.js")


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


def is_accessible(page, what):
    """axe-core finds nothing. It is evaluated by the debugger, which no policy restricts."""
    with open(AXE, encoding="utf-8") as file:
        page.evaluate(file.read() + "; null")
    for scheme in ["light", "dark"]:
        page.emulate_media(color_scheme=scheme)
        result = page.evaluate("axe.run()")
        found = [(each["id"], [node["html"] for node in each["nodes"]])
                 for each in result["violations"]]
        assert not found, f"{what}, {scheme}: {found}"
    page.emulate_media(color_scheme="light")


def choose(page, files, button="Upload files"):
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name=button).click()
    chooser.value.set_files(files)


def launch(playwright):
    return playwright.chromium.launch(
        executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
        args=["--no-sandbox", "--disable-dev-shm-usage"])


def run(tests, more=()):
    """Runs tests with one page, and those in `more` with the browser. Prints `done`."""
    with sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page()
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text)
                if "Content Security Policy" in message.text and "sandboxed" not in message.text
                else None)
        for test in tests:
            print(test.__name__, flush=True)
            test(page)
            assert not problems, problems
        for test in more:
            print(test.__name__, flush=True)
            test(browser)
        browser.close()
    print("done")
