"""What the scripts that drive the browser have in common."""

import functools
import os
import sys

AXE = os.path.join(os.path.dirname(__import__("axe_playwright_python").__file__), "axe.min.js")


def is_https():
    return sys.argv[1].startswith("https:")


def launch(playwright):
    """The browser. Over HTTPS it takes the certificate as it is."""
    browser = playwright.chromium.launch(
        executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
        args=["--no-sandbox", "--disable-dev-shm-usage"])
    if is_https():
        for name in ["new_page", "new_context"]:
            make = getattr(browser, name)
            setattr(browser, name, functools.partial(make, ignore_https_errors=True))
    return browser


def has_version(page):
    """The page was loaded by HTTP/2 over HTTPS, and by HTTP/1.1 otherwise."""
    loaded = page.evaluate("performance.getEntriesByType('navigation')[0].nextHopProtocol")
    assert loaded == ("h2" if is_https() else "http/1.1"), loaded


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


def problems_of(page):
    """Errors of scripts and of the policy, in a list that grows."""
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text)
            if "Content Security Policy" in message.text and "sandboxed" not in message.text
            else None)
    return problems
