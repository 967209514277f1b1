"""Renaming and moving entries on the page, in a real browser. See `common`."""

import os

from playwright.sync_api import expect

from common import MINUTE, URL, act, content, is_accessible, make, names, path, row, run, said


def exists(*name):
    return os.path.exists(path(*name))


def rename_with_the_keyboard(page):
    make("moves/old.name.txt", b"1")
    make("moves/dir/inner.txt", b"2")
    page.goto(URL + "/moves/")
    row(page, "old.name.txt").get_by_role("button").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Rename").focus()
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("textbox")).to_have_value("old.name.txt")
    expect(dialog.get_by_role("textbox")).to_be_focused()
    is_accessible(page, "a new name")
    page.keyboard.type("new <b>?#ü")  # Replaces the part before the extension.
    page.keyboard.press("Enter")
    said(page, "old.name.txt is renamed to new <b>?#ü.txt")
    assert content("moves/new <b>?#ü.txt") == b"1" and not exists("moves/old.name.txt")
    assert names(page) == ["dir/", "new <b>?#ü.txt"], names(page)
    act(page, "dir/", "Rename")
    dialog.get_by_role("textbox").fill("folder")
    dialog.get_by_role("button", name="Rename").click()
    said(page, "dir/ is renamed to folder")
    assert content("moves/folder/inner.txt") == b"2"


def names_that_are_none(page):
    make("moves/stays.txt", b"3")
    page.goto(URL + "/moves/")
    dialog = page.get_by_role("dialog")
    for name in ["..", ".", "a/b"]:
        act(page, "stays.txt", "Rename")
        dialog.get_by_role("textbox").fill(name)
        page.keyboard.press("Enter")
        said(page, "A name has no slash")
        page.reload()
    act(page, "stays.txt", "Rename")
    dialog.get_by_role("textbox").fill(".hidden")
    page.keyboard.press("Enter")
    said(page, "stays.txt was not renamed to .hidden. This name is hidden or reserved")
    act(page, "stays.txt", "Rename")
    expect(dialog.get_by_role("textbox")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert content("moves/stays.txt") == b"3"


def nothing_is_replaced_without_a_question(page):
    make("moves/one.txt", b"one")
    make("moves/two.txt", b"two")
    page.goto(URL + "/moves/")
    dialog = page.get_by_role("dialog")
    for choice, expected in [("Cancel", b"two"), ("Replace", b"one")]:
        act(page, "one.txt", "Rename")
        dialog.get_by_role("textbox").fill("two.txt")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("/moves/two.txt exists")
        is_accessible(page, "a name in use")
        dialog.get_by_role("button", name=choice).click()
        said(page, "is renamed" if choice == "Replace" else "was not renamed to two.txt. An entry of")
        assert content("moves/two.txt") == expected
    assert not exists("moves/one.txt")


def move(page):
    for name in ["from/file.txt", "from/sub/inner.txt", "to/deep er/here.txt"]:
        make("tree/" + name, name.encode())
    page.goto(URL + "/tree/from/")
    dialog = page.get_by_role("dialog")
    act(page, "sub/", "Move")
    expect(dialog).to_contain_text("To /tree/from/")
    expect(dialog.get_by_role("listitem")).to_have_text(["Folder above"])  # Not into itself.
    expect(dialog.get_by_role("button", name="Folder above")).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("To /tree/")
    is_accessible(page, "a folder to move to")
    dialog.get_by_role("button", name="to", exact=True).click()
    dialog.get_by_role("button", name="deep er").click()
    expect(dialog).to_contain_text("To /tree/to/deep er/")
    dialog.get_by_role("button", name="Move here").click()
    said(page, "sub/ is moved to /tree/to/deep er/")
    assert content("tree/to/deep er/sub/inner.txt") == b"from/sub/inner.txt"
    assert names(page) == ["file.txt"], names(page)
    # The top folder has none above it.
    act(page, "file.txt", "Move")
    for shown in ["To /tree/", "To /"]:
        dialog.get_by_role("button", name="Folder above").click()
        expect(dialog.locator("p")).to_have_text(shown)
    expect(dialog.get_by_role("button", name="tree")).to_be_visible()
    expect(dialog.get_by_role("button", name="Folder above")).to_have_count(0)
    page.keyboard.press("Escape")
    # The folder is removed while it is chosen.
    os.makedirs(path("tree/gone"))
    act(page, "file.txt", "Move")
    dialog.get_by_role("button", name="Folder above").click()
    dialog.get_by_role("button", name="gone").click()
    expect(dialog).to_contain_text("To /tree/gone/", timeout=MINUTE)
    os.rmdir(path("tree/gone"))
    dialog.get_by_role("button", name="Move here").click()
    said(page, "The folder of the destination does not exist")
    assert exists("tree/from/file.txt")


run([rename_with_the_keyboard, names_that_are_none, nothing_is_replaced_without_a_question, move])
