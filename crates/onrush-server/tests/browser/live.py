"""Live updates of the page of a folder. Arguments: the URL of a server that permits everything, and
the path of the folder that it serves. Prints `done`."""

import os
import sys

from check import has_version, is_accessible, launch, problems_of
from playwright.sync_api import expect, sync_playwright

URL, FOLDER = sys.argv[1:3]
MINUTE = 60_000


def make(name, content=b"content"):
    path = os.path.join(FOLDER, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def link(page, name):
    return page.get_by_role("link", name=name, exact=True)


def open_page(page, folder):
    """Opens a folder and waits until changes are reported."""
    with page.expect_response(lambda response: response.url.endswith("?watch")) as response:
        page.goto(f"{URL}/{folder}/")
    assert response.value.status == 200, response.value.status


def changes_appear(page):
    make("live/b.txt", b"1")
    open_page(page, "live")
    make("live/a.txt")
    expect(link(page, "a.txt")).to_be_visible(timeout=MINUTE)
    make("live/b.txt", b"123456")
    row = page.locator("tbody tr").filter(has=link(page, "b.txt"))
    expect(row).to_contain_text("6 B", timeout=MINUTE)
    page.request.put(f"{URL}/live/put <b>.txt", data=b"x")
    expect(link(page, "put <b>.txt")).to_be_visible(timeout=MINUTE)
    os.mkdir(os.path.join(FOLDER, "live/new folder"))
    expect(link(page, "new folder/")).to_be_visible(timeout=MINUTE)
    os.remove(os.path.join(FOLDER, "live/a.txt"))
    expect(link(page, "a.txt")).to_have_count(0, timeout=MINUTE)
    names = page.locator("tbody tr td:first-child").all_inner_texts()
    assert names == ["new folder/", "b.txt", "put <b>.txt"], names
    # New rows have their actions.
    expect(page.get_by_role("button", name="Actions for put <b>.txt")).to_be_visible()
    is_accessible(page, "after live updates")
    page.request.delete(f"{URL}/live/put <b>.txt")
    expect(link(page, "put <b>.txt")).to_have_count(0, timeout=MINUTE)


def nothing_is_lost(page):
    """Focus, selection, scroll position and filter stay."""
    for at in range(200):
        make(f"stay/{at:03}.txt")
    open_page(page, "stay")
    link(page, "150.txt").focus()
    page.get_by_role("button", name="Actions for 160.txt").evaluate("row => { window.kept = row; }")
    page.evaluate("getSelection().selectAllChildren(document.querySelectorAll('tbody tr')[140])")
    before = page.evaluate("scrollY")
    assert before > 0
    make("stay/190 new.txt")
    expect(link(page, "190 new.txt")).to_have_count(1, timeout=MINUTE)
    os.remove(os.path.join(FOLDER, "stay/170.txt"))
    expect(link(page, "170.txt")).to_have_count(0, timeout=MINUTE)
    expect(link(page, "150.txt")).to_be_focused()
    assert page.evaluate("scrollY") == before
    assert "140.txt" in page.evaluate("getSelection().toString()")
    assert page.evaluate("window.kept.isConnected"), "equal rows stay"
    # The focus moves to the new row of a file that has changed.
    make("stay/150.txt", b"longer than before")
    row = page.locator("tbody tr").filter(has=link(page, "150.txt"))
    expect(row).to_contain_text("18 B", timeout=MINUTE)
    expect(link(page, "150.txt")).to_be_focused()
    page.get_by_role("searchbox").fill("new")
    make("stay/another new.txt")
    make("stay/another.txt")
    expect(link(page, "another.txt")).to_have_count(0)
    expect(page.locator("tbody tr:visible")).to_have_count(2, timeout=MINUTE)
    expect(page.locator("tbody tr")).to_have_count(202, timeout=MINUTE)
    assert page.locator("tbody tr:visible").count() == 2
    expect(page.get_by_role("searchbox")).to_be_focused()


def a_deleted_folder_is_announced(page):
    make("gone soon/x.txt")
    open_page(page, "gone soon")
    os.rename(os.path.join(FOLDER, "gone soon"), os.path.join(FOLDER, "elsewhere"))
    expect(page.get_by_role("status")).to_contain_text("deleted or moved", timeout=MINUTE)


def many_changes(page):
    """Too many for single events."""
    make("storm/first.txt")
    open_page(page, "storm")
    for at in range(1000):
        make(f"storm/{at:04}.txt", b"")
    expect(page.locator("tbody tr")).to_have_count(1001, timeout=MINUTE)


with sync_playwright() as playwright:
    browser = launch(playwright)
    page = browser.new_page()
    problems = problems_of(page)
    for test in [changes_appear, nothing_is_lost, a_deleted_folder_is_announced, many_changes]:
        print(test.__name__, flush=True)
        test(page)
        assert not problems, problems
    has_version(page)
    browser.close()
print("done")
