// The page of a folder: filter, actions on entries, and the parts that the other scripts use.
// The server renders all entries. After a change, the page is fetched again and its parts replaced.
// So there is one place that renders, and the page works without this script.

/** Makes an element. Text and elements may be children; nothing is parsed as HTML. */
function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-") || key === "role") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

/** A size in the units of the server's page. */
function sizeText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? bytes : bytes.toFixed(1)} ${units[unit]}`;
}

/** The sentence of an error response, for people. */
function sentence(status, detail) {
  if (status === 0) return "The connection was lost.";
  if (status === 401) return "You are not logged in any more. Reload the page.";
  if (status === 412) return "It was changed meanwhile.";
  const line = detail.trim().split("\n")[0] || `The server answered with status ${status}`;
  return `${line[0].toUpperCase()}${line.slice(1)}${line.endsWith(".") ? "" : "."}`;
}

/** What the client may do in this folder: create, replace, delete. */
const may = (right) => document.querySelector("main").dataset.rights.split(" ").includes(right);

const announcer = element("p", { role: "status", className: "quiet" });

/** Tells a result to everyone, also to users of screen readers. */
function announce(text) {
  announcer.textContent = text;
}

/** Shows a dialog until a button of it is pressed. Resolves to the value of the button. */
function ask(title, content, buttons) {
  const heading = element("h2", { id: "dialog-title", textContent: title });
  const choices = element("div", { className: "tools" });
  const dialog = element("dialog", { "aria-labelledby": "dialog-title" }, heading);
  for (const [value, label] of buttons) {
    const button = element("button", { type: "button", value, textContent: label });
    button.addEventListener("click", () => dialog.close(value));
    choices.append(button);
  }
  dialog.append(...content, choices);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    });
  });
}

const rows = () => [...document.querySelectorAll("tbody tr")];
const linkOf = (row) => row.querySelector("td a");
const nameOf = (row) => linkOf(row).textContent;

/** The field of the filter. There is none on a page without entries. */
const filterInput = () => document.querySelector("#filter input");

function filter() {
  const input = filterInput();
  const wanted = input.value.toLowerCase();
  let shown = 0;
  for (const row of rows()) {
    row.hidden = !nameOf(row).toLowerCase().includes(wanted);
    if (!row.hidden) shown += 1;
  }
  if (wanted) announce(`${shown.toLocaleString("en")} of ${rows().length.toLocaleString("en")} shown.`);
}

/** What opens the actions of an entry. */
const actionCell = element("td", {},
  element("button", { type: "button", className: "more", textContent: "\u22ef" }));

/** Adds the actions to a row that the server has rendered. */
function enhanceRow(row) {
  // There may be 10,000 rows: a copy is the fastest way.
  const copy = actionCell.cloneNode(true);
  copy.firstChild.setAttribute("aria-label", `Actions for ${row.firstChild.textContent}`);
  row.append(copy);
}

/** Adds what needs this script to the page that the server has rendered. */
function enhance() {
  document.querySelector(".tools").after(announcer);
  if (filterInput()) {
    const search = document.querySelector("#filter");
    search.hidden = false;
    search.addEventListener("input", filter);
    const head = document.querySelector("thead tr");
    head.append(element("th", { scope: "col" }, element("span", { className: "quiet", textContent: "Actions" })));
    rows().forEach(enhanceRow);
  }
  const creator = document.querySelector("#new-folder");
  if (creator) {
    creator.hidden = false;
    creator.addEventListener("click", newFolder);
  }
  offerUploads();
  follow();
}

/** Fetches the page again, or another folder, and shows it. Uploads in progress continue. */
async function refresh(url = location.href) {
  const response = await fetch(url, { headers: { Accept: "text/html" } });
  if (!response.ok) {
    announce(sentence(response.status, await response.text()));
    return;
  }
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  if (!page.querySelector("main[data-rights]")) {
    location.assign(url); // A folder of a site has a page of its own.
    return;
  }
  const had = filterInput()?.value;
  const lostFocus = document.querySelector("main").contains(document.activeElement);
  for (const part of ["header", "main"]) {
    document.querySelector(part).replaceWith(page.querySelector(part));
  }
  document.title = page.title;
  const moved = url !== location.href;
  if (moved) history.pushState(null, "", url);
  enhance();
  if (lostFocus || moved) document.querySelector("h1").focus();
  if (had && !moved && filterInput()) {
    filterInput().value = had;
    filter();
  }
}

document.addEventListener("click", (event) => {
  if (event.target.matches(".more")) act(event.target.closest("tr"));
  const link = event.target.closest("a");
  const isPlain = event.button === 0 && !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey);
  if (!link || !isPlain) return;
  if (link.closest("tbody") && previewKind(link)) {
    event.preventDefault();
    preview(link);
  } else if (link.closest("header, main") && link.href.endsWith("/") && areUploading()) {
    event.preventDefault();
    refresh(link.href);
  }
});

document.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (button?.name !== "sort" || !areUploading()) return;
  event.preventDefault();
  const url = new URL(location.href);
  url.search = new URLSearchParams({ sort: button.value });
  refresh(url.href);
});

addEventListener("popstate", () => location.reload());
// The parts after this one are part of the same script: they are complete when this runs.
addEventListener("DOMContentLoaded", enhance);
