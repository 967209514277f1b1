// Actions on the entries of a folder: copy a link, delete, rename, move; and new folders.

/** Sends a request without a body. Resolves to its status and text. Status 0: no response. */
async function request(method, url, headers = {}) {
  try {
    const response = await fetch(url, { method, headers });
    return { status: response.status, text: await response.text() };
  } catch {
    return { status: 0, text: "" };
  }
}

const isSuccess = (status) => status >= 200 && status < 300;

/** A part of a URL as text. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // It is not UTF-8.
  }
}

async function copyLink(url) {
  try {
    // Browsers permit this only over HTTPS and on this machine.
    await navigator.clipboard.writeText(url);
    announce("The link is copied.");
  } catch {
    const input = element("input", { readOnly: true, value: url, "aria-label": "Link" });
    input.addEventListener("focus", () => input.select());
    await ask("Copy this link", [input], [["", "Close"]]);
  }
}

async function remove(row) {
  const name = nameOf(row);
  // Whether a folder that is not empty may be deleted is known to the server only.
  const what = name.endsWith("/") ? `the folder ${name.slice(0, -1)} and everything in it` : name;
  const choice = await ask(`Delete ${what}?`, [element("p", { textContent: "It cannot be restored." })],
    [["", "Cancel"], ["delete", "Delete"]]);
  if (choice !== "delete") return;
  const { etag } = row.dataset;
  const headers = etag ? { "If-Match": `"${etag}"` } : {};
  const { status, text } = await request("DELETE", linkOf(row).href, headers);
  await refresh();
  announce(isSuccess(status) || status === 404 ? `${name} is deleted.`
    : `${name} was not deleted. ${sentence(status, text)}`);
}

/** Asks for a name. Resolves to nothing if the user cancels, or it is no name of an entry. */
async function askName(title, label, present = "") {
  const input = element("input", { autocomplete: "off", spellcheck: false, required: true, value: present });
  const stem = present.lastIndexOf(".");
  input.addEventListener("focus", () => {
    input.setSelectionRange(0, stem > 0 ? stem : present.length); // The extension usually stays.
  }, { once: true });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault(); // Otherwise it presses the button that gets the focus now.
    input.closest("dialog").close("ok");
  });
  const field = element("label", {}, "Name ", input);
  const choice = await ask(title, [field], [["", "Cancel"], ["ok", label]]);
  const name = input.value.trim();
  if (choice !== "ok" || !name || name === present) return undefined;
  if (name === "." || name === ".." || name.includes("/")) {
    announce("A name has no slash, and is not a dot or two dots.");
    return undefined;
  }
  return name;
}

async function newFolder() {
  const name = await askName("New folder", "Create");
  if (!name) return;
  const url = new URL(`./${encodeURIComponent(name)}/`, location.href);
  const { status, text } = await request("PUT", url, { "If-None-Match": "*" });
  if (status === 201) await refresh();
  announce(status === 201 ? `${name} is created.`
    : status === 412 ? `${name} exists already.` : `${name} was not created. ${sentence(status, text)}`);
}

/**
 * Moves an entry to a URL. Nothing is replaced without a confirmation. `done` says what was done,
 * such as "renamed".
 */
async function relocate(row, to, done) {
  const name = nameOf(row);
  const target = `${to.pathname}${linkOf(row).href.endsWith("/") ? "/" : ""}`;
  const send = (overwrite) => request("MOVE", linkOf(row).href, { Destination: target, Overwrite: overwrite });
  let { status, text } = await send("F");
  if (status === 412) {
    text = "An entry of this name exists.";
    const buttons = may("replace") ? [["", "Cancel"], ["replace", "Replace"]] : [["", "Close"]];
    const place = decoded(to.pathname);
    const content = [element("p", { textContent: `${place} exists. ${name} can only replace it.` })];
    if (await ask("The name is in use", content, buttons) === "replace") ({ status, text } = await send("T"));
  }
  await refresh();
  announce(isSuccess(status) ? `${name} is ${done}.`
    : `${name} was not ${done}. ${status === 412 ? text : sentence(status, text)}`);
}

const folderOf = (url) => new URL("./", url);

async function rename(row) {
  const { href } = linkOf(row);
  const present = decoded(href.replace(/\/$/, "").split("/").pop());
  const name = await askName(`Rename ${nameOf(row)}`, "Rename", present);
  if (name) await relocate(row, new URL(encodeURIComponent(name), folderOf(location.href)), `renamed to ${name}`);
}

/** The URLs of the folders in a folder, with their names. Throws what the user should read. */
async function foldersIn(folder) {
  const { status, text } = await request("GET", new URL("?format=json&limit=10000", folder));
  if (status !== 200) throw new Error(sentence(status, text));
  return JSON.parse(text).entries.filter(({ type }) => type === "directory")
    .map(({ name, href }) => [name, new URL(`./${href.split("/").at(-2)}/`, folder)]);
}

/** Lets the user choose a folder. Resolves to its URL, or to nothing. */
async function chooseFolder(title, isExcluded) {
  const top = new URL("./", document.querySelector("nav a").href);
  const place = element("p");
  const choices = element("ul", { className: "folders" });
  let folder = folderOf(location.href);
  const open = async (url) => {
    folder = url;
    place.textContent = `To ${decoded(url.pathname)}`;
    let found = [];
    try {
      found = (await foldersIn(url)).filter(([, inner]) => !isExcluded(inner));
    } catch ({ message }) {
      place.textContent += `. ${message}`;
    }
    if (folder !== url) return; // Another folder was opened meanwhile.
    if (url.href !== top.href) found.unshift(["Folder above", new URL("../", url)]);
    choices.replaceChildren(...found.map(([name, inner]) => {
      const button = element("button", { type: "button" }, element("bdi", { textContent: name }));
      button.addEventListener("click", () => open(inner));
      return element("li", {}, button);
    }));
    (choices.querySelector("button") ?? place.closest("dialog")?.querySelector(".tools button"))?.focus();
  };
  open(folder);
  const choice = await ask(title, [place, choices], [["", "Cancel"], ["move", "Move here"]]);
  return choice === "move" ? folder : undefined;
}

async function move(row) {
  const { href } = linkOf(row);
  const folder = await chooseFolder(`Move ${nameOf(row)}`, (url) => url.href === href);
  const name = href.replace(/\/$/, "").split("/").pop();
  if (!folder || folder.href === folderOf(location.href).href) return;
  await relocate(row, new URL(`./${name}`, folder), `moved to ${decoded(folder.pathname)}`);
}

/** The actions on one entry. */
async function act(row) {
  const { href } = linkOf(row);
  const buttons = [];
  if (previewKind(linkOf(row))) buttons.push(["preview", "Preview"]);
  if (!href.endsWith("/")) buttons.push(["download", "Download"]);
  buttons.push(["copy", "Copy link"]);
  if (row.dataset.movable !== undefined) buttons.push(["rename", "Rename"], ["move", "Move"]);
  if (row.dataset.etag !== undefined) buttons.push(["delete", "Delete"]);
  const choice = await ask(nameOf(row), [], [...buttons, ["", "Close"]]);
  if (choice === "preview") preview(linkOf(row));
  if (choice === "download") element("a", { href, download: "" }).click();
  if (choice === "copy") await copyLink(href);
  if (choice === "rename") await rename(row);
  if (choice === "move") await move(row);
  if (choice === "delete") await remove(row);
}
