// Uploads in parts that were interrupted, also by a reload: the browser keeps their URLs, and the page
// offers to continue. The user has to choose the file again, because no page may keep access to it.
// It is taken for the same file if name, size and time are equal.

const UNFINISHED = "onrush-unfinished";

/** All unfinished uploads that the browser knows. */
function unfinished() {
  try {
    const found = JSON.parse(localStorage.getItem(UNFINISHED));
    return Array.isArray(found) ? found.filter(({ until }) => until > Date.now()) : [];
  } catch {
    return []; // The user may not permit storage.
  }
}

/** Replaces what is known of the upload with this URL. */
function keepUnfinished(url, entry) {
  const others = unfinished().filter(({ upload }) => upload.url !== url);
  try {
    localStorage.setItem(UNFINISHED, JSON.stringify(entry ? [...others, entry] : others));
  } catch {
    // Then it does not continue after a reload.
  }
}

/** Remembers an upload that has begun, for as long as the server keeps it. */
function remember({ base, path, original, file, replace, upload }) {
  const { url, partBytes, lifetime } = upload;
  keepUnfinished(url, {
    base: base.href, path, original: original ?? path, replace, upload: { url, partBytes, lifetime },
    name: file.name, size: file.size, modified: file.lastModified, until: Date.now() + lifetime,
  });
}

/** An upload has ended. */
function forget(job) {
  if (!job.upload) return;
  keepUnfinished(job.upload.url);
  job.upload = undefined;
}

/** What is known of an upload of this file to this folder. */
function recall(base, path, file) {
  const found = unfinished().filter((entry) => entry.base === base.href && entry.name === file.name
    && entry.size === file.size && entry.modified === file.lastModified
    && !uploads.some(({ upload, state }) => upload?.url === entry.upload.url && state !== "cancelled"));
  return found.find(({ original }) => original === path) ?? found[0];
}

/** Ends an upload on the server as well. */
function discard(job) {
  const url = job.upload?.url;
  forget(job);
  if (url) request("DELETE", url);
}

/** Shows what can be continued in this folder. */
async function offerUnfinished() {
  const base = new URL("./", location.href);
  const place = element("ul", { id: "unfinished", "aria-label": "Unfinished uploads" });
  for (const entry of unfinished()) {
    const { upload, path, size } = entry;
    if (entry.base !== base.href || uploads.some((job) => job.upload?.url === upload.url)) continue;
    const { status, field } = await sendBody("HEAD", upload.url);
    if (status === 404 || field("Upload-Complete") === "?1") keepUnfinished(upload.url);
    if (status !== 204 || field("Upload-Complete") === "?1") continue;
    const arrived = partsThat(true, size, upload.partBytes, field);
    const text = `${path}: ${sizeText(bytesOfParts(arrived, size, upload.partBytes))} of ${sizeText(size)} `
      + "were uploaded. Choose the file again to continue.";
    const buttons = element("div");
    const item = element("li", {}, element("span", { textContent: text }), buttons);
    showButtons(buttons, path, [
      ["Continue", true, () => pick(false)],
      ["Discard", true, () => {
        discard({ upload });
        (place.children.length > 1 ? item : place).remove();
      }],
    ]);
    place.append(item);
  }
  if (new URL("./", location.href).href !== base.href) return; // Another folder is shown now.
  document.querySelector("#unfinished")?.remove();
  if (place.children.length) document.querySelector("main .tools").after(place);
}
