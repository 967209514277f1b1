"""The page of a folder in a real browser. A third argument is a folder for screenshots, which are then
made instead. See `common`."""

import os
import shutil
import sys
import tarfile
import zipfile

from playwright.sync_api import expect, sync_playwright

from common import (FOLDER, MINUTE, URL, act, content, is_accessible, launch, make, names, path, run,
                    said)

HOSTILE = [
    "<script>document.title = 'run'<", "<img src=x onerror=alert(1)>", "\"quoted\" & 'quoted'.txt",
    "javascript:alert(1)", "\u202egpj.exe", "line\nbreak.txt", "a\u2215..\u2215b",
    "%2e%2e", "x" * 250, "?query#fragment", "{{rows}}", "back\\slash", " ", "emoji \U0001f600.txt",
]


def hostile_names(page):
    for at, name in enumerate(HOSTILE):
        make("hostile/" + name, b"%d" % at)
    make("hostile/folder <b>\"/inner.txt")
    page.goto(URL + "/hostile/")
    expect(page.locator("tbody tr")).to_have_count(len(HOSTILE) + 1)
    assert page.locator("tbody img, tbody script, tbody b").count() == 0
    assert page.title() == "Index of /hostile/", page.title()
    # Each link leads to its own file.
    links = page.locator("tbody a").evaluate_all("links => links.map(link => link.href)")
    found = {page.request.get(link).text() for link in links if not link.endswith("/")}
    assert found == {str(at) for at in range(len(HOSTILE))}, found
    is_accessible(page, "hostile names")
    page.get_by_role("link", name="folder <b>\"/", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("folder <b>\"")
    page.get_by_role("navigation").get_by_role("link", name="hostile").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("hostile")
    # Deleted as well as read.
    for name in ["<img src=x onerror=alert(1)>", "?query#fragment", "\"quoted\" & 'quoted'.txt"]:
        act(page, name, "Delete")
        page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
        said(page, f"{name} is deleted")
        assert not os.path.exists(path("hostile", name)), name


def without_script(browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(URL + "/sorted/")
    assert names(page) == ["dir/", "a.txt", "b.txt", "c.txt"], names(page)
    page.get_by_role("button", name="Size").click()
    assert names(page) == ["dir/", "b.txt", "c.txt", "a.txt"], names(page)
    page.get_by_role("button", name="Size").click()
    assert names(page) == ["dir/", "a.txt", "c.txt", "b.txt"], names(page)
    assert page.get_by_role("button", name="Upload").count() == 0
    page.get_by_role("link", name="b.txt").click()
    assert page.inner_text("body") == "1"
    context.close()


def search_and_sort(page):
    for name, size in [("a.txt", 3), ("b.txt", 1), ("c.txt", 2)]:
        make("sorted/" + name, b"123"[:size])
    make("sorted/dir/deep.txt")
    page.goto(URL + "/sorted/")
    page.get_by_role("button", name="Name").click()
    expect(page.locator("th[aria-sort]")).to_have_attribute("aria-sort", "descending")
    assert names(page) == ["dir/", "c.txt", "b.txt", "a.txt"], names(page)
    page.get_by_role("searchbox").fill("B.")
    assert names(page) == ["b.txt"], names(page)
    said(page, "1 of 4 shown")


def many_entries(page):
    for number in range(10_000):
        make(f"many/{number:05}.txt", b"")
    page.goto(URL + "/many/")
    expect(page.locator("tbody tr")).to_have_count(10_000, timeout=MINUTE)
    page.get_by_role("searchbox").fill("0999")
    expect(page.locator("tbody tr:visible")).to_have_count(11)
    make("many/99999.txt", b"")
    page.goto(URL + "/many/")
    page.get_by_role("link", name="Next page").click()
    assert names(page) == ["99999.txt"], names(page)


def upload_by_button(page):
    make("up/taken.txt", b"old")
    make("gone/file.txt")
    page.goto(URL + "/up/")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Upload files").click()
    chooser.value.set_files([
        {"name": "new ü?.txt", "mimeType": "text/plain", "buffer": b"new"},
        {"name": "empty", "mimeType": "", "buffer": b""},
        {"name": "taken.txt", "mimeType": "text/plain", "buffer": b"newer"},
    ])
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("taken.txt exists")
    is_accessible(page, "a conflict")
    dialog.get_by_role("button", name="Keep both").click()
    said(page, "3 files uploaded")
    assert content("up/new ü?.txt") == b"new" and content("up/empty") == b""
    assert content("up/taken.txt") == b"old" and content("up/taken (2).txt") == b"newer"
    assert "taken (2).txt" in names(page), names(page)
    is_accessible(page, "after uploads")
    for answer, expected in [("Skip", b"old"), ("Replace", b"third")]:
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Upload files").click()
        chooser.value.set_files([{"name": "taken.txt", "mimeType": "", "buffer": b"third"}])
        dialog.get_by_role("button", name=answer).click()
        expect(page.get_by_role("region", name="Uploads").get_by_role("button", name="Close")
               ).to_be_visible()
        said(page, "uploaded")
        assert content("up/taken.txt") == expected


def large_conflict(page):
    """The server refuses before it has read the body. The page learns why, and asks."""
    make("up/large.bin", b"small")
    large = path("..", os.path.basename(FOLDER) + "-large.bin")
    with open(large, "wb") as file:
        file.truncate(80 << 20)
    page.goto(URL + "/up/")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Upload files").click()
    os.rename(large, path("..", "large.bin"))
    chooser.value.set_files([path("..", "large.bin")])
    page.get_by_role("dialog").get_by_role("button", name="Replace").click(timeout=MINUTE)
    said(page, "1 file uploaded")
    assert os.path.getsize(path("up/large.bin")) == 80 << 20
    os.remove(path("..", "large.bin"))


def drag_and_drop(page):
    """A folder with folders, dropped as the desktop does it."""
    outside = path("..", "dropped")
    for name, text in [("one.txt", "1"), ("in/two.txt", "2"), ("in/deep er/three.txt", "3")]:
        os.makedirs(os.path.dirname(os.path.join(outside, name)), exist_ok=True)
        with open(os.path.join(outside, name), "w", encoding="utf-8") as file:
            file.write(text)
    page.goto(URL + "/up/")
    devtools = page.context.new_cdp_session(page)
    data = {"items": [], "files": [os.path.abspath(outside)], "dragOperationsMask": 1}
    for kind in ["dragEnter", "dragOver", "drop"]:
        devtools.send("Input.dispatchDragEvent", {"type": kind, "x": 200, "y": 200, "data": data})
    said(page, "3 files uploaded")
    assert content("up/dropped/in/deep er/three.txt") == b"3"
    expect(page.get_by_role("link", name="dropped/")).to_be_visible()
    page.goto(URL + "/gone/")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Upload a folder").click()
    chooser.value.set_files(outside)
    said(page, "3 files uploaded")
    assert content("gone/dropped/in/two.txt") == b"2"
    shutil.rmtree(path("gone/dropped"))


def pause_and_failures(page):
    """Requests are held by the test, so that uploads are in progress as long as it wants."""
    held = []
    page.goto(URL + "/up/")
    page.route("**/held-*", lambda route: held.append(route))
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Upload files").click()
    chooser.value.set_files(
        [{"name": f"held-{at}", "mimeType": "", "buffer": b"%d" % at} for at in range(5)])
    panel = page.get_by_role("region", name="Uploads")
    expect(panel.get_by_role("progressbar", name="held-2")).to_be_visible()
    expect(panel).to_contain_text("held-3: waiting")
    # What the page has sent reaches this program a moment later.
    while len(held) < 3:
        page.wait_for_timeout(50)
    assert len(held) == 3, "at most three at once"
    is_accessible(page, "uploads in progress")
    # While uploads are in progress, other folders are shown without leaving the page.
    page.get_by_role("button", name="Size").click()
    expect(page.locator("th[aria-sort]")).to_contain_text("Size")
    page.get_by_role("link", name="dropped/").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("dropped")
    page.get_by_role("navigation").get_by_role("link", name="up").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("up")
    panel.get_by_role("button", name="Pause held-0").click()
    expect(panel).to_contain_text("held-0: paused")
    expect(panel.get_by_role("progressbar", name="held-3")).to_be_visible()
    panel.get_by_role("button", name="Cancel held-1").click()
    expect(panel).not_to_contain_text("held-1")
    expect(panel.get_by_role("progressbar", name="held-4")).to_be_visible()
    while len(held) < 5:
        page.wait_for_timeout(10)
    # Requests at the same time arrive in any order.
    by_name = {route.request.url.split("?")[0].rsplit("/", 1)[1]: route for route in held}
    by_name["held-2"].abort()
    by_name["held-3"].fulfill(status=507, body="the disk is full\n")
    by_name["held-4"].continue_()
    expect(panel).to_contain_text("held-2: The connection was lost.")
    expect(panel).to_contain_text("held-3: The disk is full.")
    page.unroute("**/held-*")
    panel.get_by_role("button", name="Retry all").click()
    panel.get_by_role("button", name="Resume all").click()
    said(page, "4 files uploaded")
    found = sorted(name for name in os.listdir(path("up")) if name.startswith("held"))
    assert found == ["held-0", "held-2", "held-3", "held-4"], found
    assert names(page).count("held-4") == 1


def delete(page):
    make("gone/file.txt")
    make("gone/full/inner.txt")
    make("gone/changed.txt", b"1")
    os.makedirs(path("gone/empty"), exist_ok=True)
    page.goto(URL + "/gone/")
    dialog = page.get_by_role("dialog")
    act(page, "file.txt", "Delete")
    is_accessible(page, "the question before a deletion")
    dialog.get_by_role("button", name="Cancel").click()
    assert os.path.exists(path("gone/file.txt"))
    for name, result, is_left in [("file.txt", "file.txt is deleted", False),
                                  ("empty/", "empty/ is deleted", False),
                                  ("full/", "not empty", True),
                                  ("changed.txt", "changed meanwhile", True)]:
        act(page, name, "Delete")
        # A folder may be deleted with everything in it; see --allow.
        what = f"the folder {name[:-1]} and everything in it" if name.endswith("/") else name
        expect(dialog).to_contain_text(f"Delete {what}?")
        if name == "changed.txt":
            make("gone/changed.txt", b"other")
        dialog.get_by_role("button", name="Delete", exact=True).click()
        said(page, result)
        assert os.path.exists(path("gone", name)) == is_left, name
    assert names(page) == ["full/", "changed.txt"], names(page)


def new_folder(page):
    page.goto(URL + "/gone/")
    dialog = page.get_by_role("dialog")
    for result in ["new & <i>? is created", "new & <i>? exists already"]:
        page.get_by_role("button", name="New folder").click()
        expect(dialog.get_by_role("textbox")).to_be_focused()
        is_accessible(page, "a new folder")
        dialog.get_by_role("textbox").fill("new & <i>?")
        page.keyboard.press("Enter")
        said(page, result)
    assert os.path.isdir(path("gone", "new & <i>?"))
    page.get_by_role("link", name="new & <i>?/").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("new & <i>?")


def copy_link(page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(URL + "/gone/")
    act(page, "changed.txt", "Copy link")
    said(page, "copied")
    assert page.evaluate("navigator.clipboard.readText()") == URL + "/gone/changed.txt"


def download_a_folder(page):
    page.goto(URL + "/up/")
    button = page.get_by_role("button", name="Download all")
    with page.expect_download() as download:
        button.click()
    assert download.value.suggested_filename == "up.zip", download.value.suggested_filename
    with zipfile.ZipFile(download.value.path()) as archive:
        assert archive.testzip() is None
        assert "up/dropped/in/deep er/three.txt" in archive.namelist(), archive.namelist()
    for name in ["tar", "tar.zst"]:
        page.get_by_label("Format of the archive").select_option(name)
        with page.expect_download() as download:
            button.click()
        assert download.value.suggested_filename == f"up.{name}"
        if name == "tar":
            with tarfile.open(download.value.path()) as archive:
                assert "up/dropped/in/deep er/three.txt" in archive.getnames()


def previews(page):
    script = "<script>top.document.title = 'run'; document.title = 'run'</script>"
    make("see/page.html", script.encode())
    make("see/image.svg", b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'>"
         b"<script>top.document.title = 'run'</script><rect width='9' height='9'/></svg>")
    make("see/long.txt", b"<b>text</b> " * 30_000)
    make("see/none.txt", b"")
    make("see/document.pdf", b"%PDF-1.4\n")
    make("see/broken.mp4", b"not a film")
    make("see/read me +.md", b"# Title\n\n" + script.encode() + b"\n\n![picture](image.svg)\n")
    page.goto(URL + "/see/")
    title = page.title()
    dialog = page.get_by_role("dialog")

    page.get_by_role("link", name="image.svg").click()
    expect(dialog.get_by_role("img")).to_have_js_property("complete", True)
    expect(dialog.get_by_role("img")).to_have_js_property("naturalWidth", 9)
    is_accessible(page, "a preview")
    dialog.get_by_role("button", name="Next").click()
    expect(dialog.get_by_role("heading")).to_have_text("long.txt")
    expect(dialog.get_by_role("region")).to_contain_text("<b>text</b>")
    expect(dialog.get_by_role("region")).to_contain_text("KiB more")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("link", name="long.txt")).to_be_focused()
    page.get_by_role("link", name="none.txt").click()
    expect(dialog.get_by_role("region")).to_have_text("")
    page.keyboard.press("Escape")
    page.get_by_role("link", name="document.pdf").click()
    expect(dialog.locator("iframe")).to_have_attribute("src", URL + "/see/document.pdf")
    # The frame may have the focus, and then it gets the keys.
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("link", name="read me +.md").click()
    shown = dialog.frame_locator("iframe")
    expect(shown.get_by_role("heading", name="Title")).to_be_visible()
    expect(shown.locator("body")).to_contain_text("<script>")
    expect(shown.get_by_role("img")).to_have_js_property("naturalWidth", 9)
    assert shown.locator("body").evaluate("() => origin") == "null"
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("link", name="broken.mp4").click()
    expect(dialog).to_contain_text("cannot show this file")
    page.keyboard.press("Escape")
    assert page.title() == title, "no script of a file has run"

    # What somebody has uploaded does not run, nor act with the rights of the reader.
    page.get_by_role("link", name="page.html").click()
    page.wait_for_url("**/page.html")
    assert page.title() != "run"


def small_screen(browser):
    page = browser.new_page(viewport={"width": 320, "height": 600})
    page.goto(URL + "/hostile/")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 320, f"the page is {width} wide"
    page.close()


def screenshots(browser, into):
    """For the documents: the folder, and uploads in progress."""
    page = browser.new_page(viewport={"width": 900, "height": 620}, device_scale_factor=1)
    page.goto(URL + "/pictures/")
    page.screenshot(path=os.path.join(into, "page.png"))
    page.emulate_media(color_scheme="dark")
    devtools = page.context.new_cdp_session(page)
    devtools.send("Network.enable")
    devtools.send("Network.emulateNetworkConditions", {
        "offline": False, "latency": 5, "downloadThroughput": -1, "uploadThroughput": 2_000_000})
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Upload files").click()
    chooser.value.set_files([{"name": f"film {at}.mp4", "mimeType": "", "buffer": b"0" * 9_000_000}
                             for at in range(1, 5)])
    expect(page.get_by_role("region", name="Uploads")).to_contain_text("s left", timeout=MINUTE)
    page.wait_for_timeout(3000)
    page.screenshot(path=os.path.join(into, "uploads.png"))
    page.get_by_role("button", name="Cancel all").click()
    page.close()


if len(sys.argv) > 3:
    with sync_playwright() as driver:
        screenshots(launch(driver), sys.argv[3])
else:
    run([hostile_names, search_and_sort, upload_by_button, large_conflict, drag_and_drop,
         pause_and_failures, delete, new_folder, copy_link, download_a_folder, previews,
         many_entries], [without_script, small_screen])
