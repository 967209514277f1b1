
// Live updates. The server says that the folder has changed (`?watch`). Then the page is fetched
// again, and only the rows that differ are replaced, so that focus, selection and scroll position
// stay. A tab that is not visible does not watch: browsers permit few connections to a server.

/** The shortest time between two updates. A page that takes long is fetched more rarely. */
const UPDATE_MS = 300;

let watching;
let updating = false;
/** Something has changed since the last update began. */
let isOutdated = false;

/** Watches the folder that is shown, if the tab is visible. */
function follow() {
  const isReported = "watch" in document.querySelector("main").dataset;
  const url = isReported && !document.hidden ? new URL("?watch", location.href).href : "";
  if (watching?.url === url && watching.readyState !== EventSource.CLOSED) return;
  watching?.close();
  watching = undefined;
  if (!url) return;
  watching = new EventSource(url);
  for (const kind of ["created", "changed", "removed", "list"]) watching.addEventListener(kind, update);
  watching.addEventListener("gone", () => {
    watching.close(); // Otherwise the browser would connect again.
    announce("This folder was deleted or moved.");
  });
}

/** Shows the present entries, now or soon. */
async function update() {
  isOutdated = true;
  if (updating) return;
  updating = true;
  while (isOutdated) {
    isOutdated = false;
    const began = performance.now();
    try {
      await fetchRows();
    } catch {
      // The connection is lost. The next event comes when it works again.
    }
    const pause = Math.max(UPDATE_MS, 5 * (performance.now() - began));
    await new Promise((resolve) => { setTimeout(resolve, pause); });
  }
  updating = false;
}

async function fetchRows() {
  const url = location.href;
  const response = await fetch(url, { headers: { Accept: "text/html" } });
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  // Meanwhile another folder may have been opened.
  if (!response.ok || url !== location.href || !page.querySelector("main[data-rights]")) return;
  showRows(page);
  const [now, next] = [document, page].map((of) => of.querySelector(".next"));
  if (next && !now) document.querySelector("table").after(document.adoptNode(next));
  if (!next) now?.remove();
}

/** Replaces, adds and removes rows. Those that are equal stay, as do their elements. */
function showRows(page) {
  const known = new Map(rows().map((row) => [linkOf(row).getAttribute("href"), row]));
  const wanted = document.querySelector("#filter input").value.toLowerCase();
  const kept = [...page.querySelectorAll("tbody tr")].map((row) => {
    const old = known.get(linkOf(row).getAttribute("href"));
    if (old && isSame(old, row)) return old;
    const added = document.adoptNode(row);
    enhanceRow(added);
    added.hidden = !nameOf(added).toLowerCase().includes(wanted);
    added.replaced = old;
    return added;
  });
  const focused = document.activeElement;
  const body = document.querySelector("tbody");
  const staying = new Set(kept);
  for (const row of known.values()) if (!staying.has(row)) row.remove();
  let place = body.firstElementChild;
  for (const row of kept) {
    if (row === place) place = place.nextElementSibling;
    else body.insertBefore(row, place);
    if (row.replaced?.contains(focused)) row.querySelector(focused.localName)?.focus();
    delete row.replaced;
  }
  if (!focused.isConnected && document.activeElement === document.body) {
    document.querySelector("h1").focus();
  }
}

/** Whether a row of the page says the same as one from the server, which has no actions yet. */
function isSame(old, row) {
  return old.dataset.etag === row.dataset.etag
    && [...row.children].every((cell, at) => cell.isEqualNode(old.children[at]));
}

document.addEventListener("visibilitychange", () => {
  follow();
  if (!document.hidden) update(); // It was not watched meanwhile.
});
