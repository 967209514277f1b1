"""The page for visitors who may upload and not list, in a real browser. See `common`."""

import os

from playwright.sync_api import expect

from common import FOLDER, URL, choose, content, is_accessible, make, path, run, said


def upload_without_listing(page):
    make("in/taken.txt", b"theirs")
    assert page.goto(URL + "/in/").status == 200
    expect(page.get_by_role("heading", level=1)).to_have_text("in")
    expect(page.get_by_role("main")).to_contain_text("You may not see what is in it")
    assert page.get_by_role("table").count() == 0 and "taken" not in page.content()
    for button in ["Download all", "New folder"]:
        assert page.get_by_role("button", name=button).count() == 0, button
    is_accessible(page, "a form for uploads")
    file = {"mimeType": "", "buffer": b"mine"}
    choose(page, [{"name": "new.txt", **file}, {"name": "taken.txt", **file}])
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("taken.txt exists")
    assert dialog.get_by_role("button", name="Replace").count() == 0
    dialog.get_by_role("button", name="Keep both").click()
    said(page, "2 files uploaded")
    assert content("in/new.txt") == b"mine" and content("in/taken (2).txt") == b"mine"
    assert content("in/taken.txt") == b"theirs"
    is_accessible(page, "after uploads")
    outside = path("..", "album")
    os.makedirs(outside)
    with open(os.path.join(outside, "photo"), "wb") as photo:
        photo.write(b"1")
    choose(page, outside, "Upload a folder")
    said(page, "1 file uploaded")
    assert content("in/album/photo") == b"1"


def a_missing_folder_looks_the_same(page):
    for folder in ["/none/", "/"]:
        assert page.goto(URL + folder).status == 200
        expect(page.get_by_role("button", name="Upload files")).to_be_visible()
    assert sorted(os.listdir(FOLDER)) == [".onrush", "in"]


run([upload_without_listing, a_missing_folder_looks_the_same])
