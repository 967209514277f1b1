
// Previews of files in a dialog. The browser gets each file as the server sends it: web pages and
// SVG images come in a sandbox, so they cannot act on this page.

const TEXT_BYTES_MAX = 256 * 1024;

const KINDS = {
  image: "apng avif bmp gif ico jpeg jpg png svg webp",
  audio: "aac flac m4a mp3 oga ogg opus wav weba",
  video: "m4v mkv mov mp4 ogv webm",
  frame: "pdf",
  markdown: "markdown md",
  text: "c cc cfg conf cpp css csv diff go h hpp ini java js json jsonl log lua mjs patch php pl py "
    + "rb rs rst sh sql tex toml ts tsv txt xml yaml yml",
};

/** How a file is shown, by its extension. Undefined: it is not. */
function previewKind(link) {
  const extension = /\.([a-z0-9]+)$/i.exec(new URL(link.href).pathname)?.[1].toLowerCase();
  if (!extension) return undefined;
  return Object.keys(KINDS).find((kind) => KINDS[kind].split(" ").includes(extension));
}

/** The text of a file, or its beginning. */
async function textOf(url) {
  // The last byte of a longer range may be within a character, which the decoder replaces.
  const headers = { Range: `bytes=0-${TEXT_BYTES_MAX - 1}` };
  const response = await fetch(url, { headers });
  if (response.status === 416) return ""; // An empty file has no first byte.
  const text = await response.text();
  if (!response.ok) return sentence(response.status, text);
  const total = Number(response.headers.get("Content-Range")?.split("/")[1] ?? 0);
  return total > TEXT_BYTES_MAX ? `${text}\n… ${sizeText(total - TEXT_BYTES_MAX)} more` : text;
}

/** The server renders Markdown, as a document that can do nothing. */
function markdownUrl({ href }) {
  const name = href.split("/").pop();
  return new URL(`./?markdown=${name.replaceAll("+", "%2B")}`, href).href;
}

function contentOf(link) {
  const { href } = link;
  const name = link.textContent;
  const kind = previewKind(link);
  const size = Number(link.closest("tr").querySelector("data")?.value);
  switch (kind === "markdown" && size > TEXT_BYTES_MAX ? "text" : kind) {
    case "markdown": return element("iframe", { src: markdownUrl(link), title: name });
    case "image": return element("img", { src: href, alt: name });
    case "audio": return element("audio", { src: href, controls: true });
    case "video": return element("video", { src: href, controls: true });
    case "frame": return element("iframe", { src: href, title: name });
    default: {
      const shown = element("pre", { tabIndex: 0, textContent: "…" });
      shown.setAttribute("aria-label", name);
      shown.setAttribute("role", "region");
      textOf(href).catch(() => sentence(0, "")).then((text) => { shown.textContent = text; });
      return shown;
    }
  }
}

/** Shows a file. The arrow keys and buttons lead to the next ones. */
function preview(first) {
  const heading = element("h2", { id: "preview-title" });
  const figure = element("figure");
  const open = element("a", { className: "button", textContent: "Open" });
  const download = element("a", { className: "button", textContent: "Download", download: "" });
  const dialog = element("dialog", { id: "preview", "aria-labelledby": "preview-title" });
  let link = first;
  const show = () => {
    heading.textContent = link.textContent;
    open.href = link.href;
    download.href = link.href;
    const content = contentOf(link);
    content.addEventListener("error", () => {
      content.replaceWith(element("p", { textContent: "The browser cannot show this file." }));
    });
    figure.replaceChildren(content);
  };
  const move = (step) => {
    const all = rows().filter((row) => !row.hidden).map(linkOf).filter(previewKind);
    link = all[(all.indexOf(link) + step + all.length) % all.length] ?? link;
    show();
  };
  const button = (label, action) => {
    const made = element("button", { type: "button", textContent: label });
    made.addEventListener("click", action);
    return made;
  };
  dialog.append(
    element("div", { className: "tools" }, heading, button("Previous", () => move(-1)),
      button("Next", () => move(1)), open, download, button("Close", () => dialog.close())),
    figure,
  );
  dialog.addEventListener("keydown", (event) => {
    if (event.target.closest("audio, video, pre")) return;
    if (event.key === "ArrowLeft") move(-1);
    if (event.key === "ArrowRight") move(1);
  });
  dialog.addEventListener("close", () => {
    dialog.remove();
    linkOf(link.closest("tr"))?.focus();
  });
  document.body.append(dialog);
  show();
  dialog.showModal();
}
