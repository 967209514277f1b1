
// Uploads: by button and by drag and drop, of files and folders, a few at a time.

const AT_ONCE = 3;
/** How many uploads that are not finished are shown. The others are counted. */
const SHOWN = 20;

/** All uploads of this page, in the order in which they were added. */
const uploads = [];
let announced = true;
/** The answer of the user for all further conflicts. */
let answerForAll = "";
let asking = Promise.resolve();

const isOpen = ({ state }) => ["waiting", "sending", "asking", "paused"].includes(state);
const areUploading = () => uploads.some(isOpen);

/** Adds files, each with its path beneath this folder. */
function add(files) {
  const base = new URL("./", location.href);
  if (!areUploading()) {
    uploads.length = 0;
    answerForAll = "";
  }
  for (const { file, path: chosen } of files) {
    const { upload, path, original, replace } = recall(base, chosen, file) ?? { path: chosen, replace: false };
    const url = urlOf(base, path);
    uploads.push({ file, path, original, base, url, upload, replace, sent: 0, note: "", state: "waiting" });
  }
  document.querySelector("#unfinished")?.remove();
  announced = false;
  start();
}

const urlOf = (base, path) => `${base.href}${path.split("/").map(encodeURIComponent).join("/")}`;

/** Starts waiting uploads while fewer than the limit are in progress. */
function start() {
  let free = AT_ONCE - uploads.filter(({ state }) => state === "sending").length;
  for (const job of uploads) {
    if (free <= 0) break;
    if (job.state !== "waiting") continue;
    free -= 1;
    send(job);
  }
  show();
  if (!announced && !areUploading()) {
    announced = true;
    finish();
  }
}

async function send(job) {
  job.state = "sending";
  const abort = new AbortController();
  Object.assign(job, { abort, sent: 0, note: "" });
  const progress = (bytes) => { job.sent = Math.min(bytes, job.file.size); };
  const { status, text, problem } = await transport(job, progress, abort.signal);
  if (job.state === "cancelled") discard(job);
  if (job.state !== "sending" || job.abort !== abort) return; // Paused or cancelled.
  if (status === 201 || status === 204) {
    job.state = "done";
    job.sent = job.file.size;
  } else if (status === 412) {
    job.state = "asking";
    asking = asking.then(() => resolveConflict(job));
  } else {
    job.state = "failed";
    job.problem = problem ?? sentence(status, text);
  }
  start();
}

/** A file of this name exists. Asks what to do, unless the user has answered for all. */
async function resolveConflict(job) {
  if (job.state !== "asking") return;
  let answer = answerForAll;
  if (!answer) {
    const all = element("input", { type: "checkbox" });
    const buttons = [["both", "Keep both"], ["skip", "Skip"]];
    if (may("replace")) buttons.unshift(["replace", "Replace"]);
    answer = await ask(`${job.path} exists`, [
      element("p", { textContent: "A file with this name is in the folder already." }),
      element("label", {}, all, " Do the same for all others"),
    ], buttons) || "skip";
    if (all.checked) answerForAll = answer;
  }
  if (job.state !== "asking") return;
  job.state = answer === "skip" ? "skipped" : "waiting";
  job.replace = answer === "replace";
  if (answer === "both") {
    // Another number is tried if this name exists as well.
    job.number = (job.number ?? 1) + 1;
    job.original ??= job.path;
    job.path = job.original.replace(/(\.[^./]*)?$/, (extension) => ` (${job.number})${extension}`);
    job.url = urlOf(job.base, job.path);
  }
  start();
}

function pause(job) {
  if (!["waiting", "sending"].includes(job.state)) return;
  job.state = "paused";
  job.abort?.abort();
}

function resume(job) {
  if (["paused", "failed"].includes(job.state)) job.state = "waiting";
}

function cancel(job) {
  if (!isOpen(job) && job.state !== "failed") return;
  const wasSending = job.state === "sending";
  job.state = "cancelled";
  job.abort?.abort();
  if (!wasSending) discard(job); // Otherwise the end of the request does it.
}

/** Applies an action to these uploads. */
function change(jobs, action) {
  jobs.forEach(action);
  announced = false;
  start();
}

async function finish() {
  const count = (wanted) => uploads.filter(({ state }) => state === wanted).length;
  const failed = count("failed");
  if (count("done")) await refresh();
  announce(`${plural(count("done"), "file")} uploaded${failed ? `, ${failed.toLocaleString("en")} failed` : ""}.`);
}

// The panel.

const panel = element("section", { id: "uploads", "aria-label": "Uploads", hidden: true });
const summary = element("p", { className: "quiet" });
const total = element("progress", { "aria-label": "All uploads" });
const list = element("ul");
const allButtons = element("div", { className: "tools" });
panel.append(summary, total, allButtons, list);

const speed = { bytes: 0, at: 0, perSecond: 0 };
let isShowing = false;

/** Updates the panel before the next frame, however many uploads change until then. */
function show() {
  if (isShowing) return;
  isShowing = true;
  requestAnimationFrame(() => {
    isShowing = false;
    showNow();
  });
}

function showNow() {
  panel.hidden = uploads.length === 0;
  if (panel.hidden) return;
  const kept = uploads.filter(({ state }) => !["cancelled", "skipped"].includes(state));
  const bytes = kept.reduce((sum, { sent }) => sum + sent, 0);
  const all = kept.reduce((sum, { file }) => sum + file.size, 0);
  const done = kept.filter(({ state }) => state === "done").length;
  total.max = Math.max(all, 1);
  total.value = all ? bytes : done === kept.length ? 1 : 0;
  const parts = [`${done.toLocaleString("en")} of ${plural(kept.length, "file")}`,
    `${sizeText(bytes)} of ${sizeText(all)}`];
  if (kept.some(({ state }) => state === "sending") && Math.round(speed.perSecond) > 0) {
    parts.push(`${sizeText(Math.round(speed.perSecond))}/s`,
      `${timeText((all - bytes) / speed.perSecond)} left`);
  }
  summary.textContent = parts.join(" · ");
  showButtons(allButtons, "", [
    ["Pause all", kept.some(({ state }) => state === "sending"), () => change(uploads, pause)],
    ["Resume all", kept.some(({ state }) => state === "paused"),
      () => change(uploads.filter(({ state }) => state === "paused"), resume)],
    ["Retry all", kept.some(({ state }) => state === "failed"),
      () => change(uploads.filter(({ state }) => state === "failed"), resume)],
    ["Cancel all", areUploading(), () => change(uploads.filter(isOpen), cancel)],
    ["Close", !areUploading(), () => { uploads.length = 0; show(); }],
  ]);
  const order = ["sending", "asking", "failed", "paused", "waiting"];
  const shown = kept.filter(({ state }) => order.includes(state))
    .sort((one, other) => order.indexOf(one.state) - order.indexOf(other.state)).slice(0, SHOWN);
  for (const job of kept) if (!shown.includes(job)) job.item?.remove();
  shown.forEach((job, at) => showJob(job, at));
  for (const item of [...list.children]) if (!shown.some((job) => job.item === item)) item.remove();
}

const LABELS = { sending: "", asking: "exists", paused: "paused", waiting: "waiting" };

function showJob(job, at) {
  if (!job.item) {
    job.text = element("span");
    job.bar = element("progress");
    job.buttons = element("div");
    job.item = element("li", {}, job.text, job.buttons, job.bar);
  }
  const { state, path, sent, file } = job;
  const about = state === "failed" ? job.problem
    : LABELS[state] || `${sizeText(sent)} of ${sizeText(file.size)}${job.note && `, ${job.note}`}`;
  job.text.textContent = `${path}: ${about}`;
  job.text.className = state === "failed" ? "failed" : "";
  job.bar.setAttribute("aria-label", path);
  job.bar.max = Math.max(file.size, 1);
  job.bar.value = sent;
  job.bar.hidden = state !== "sending";
  showButtons(job.buttons, path, [
    ["Pause", ["sending", "waiting"].includes(state), () => change([job], pause)],
    ["Resume", state === "paused", () => change([job], resume)],
    ["Retry", state === "failed", () => change([job], resume)],
    ["Cancel", true, () => change([job], cancel)],
  ]);
  if (list.children[at] !== job.item) list.insertBefore(job.item, list.children[at] ?? null);
}

/** Shows the buttons that apply now. Keeps those that exist, and so the focus. */
function showButtons(place, about, wanted) {
  for (const [label, applies, action] of wanted) {
    let button = [...place.children].find(({ textContent }) => textContent === label);
    if (!button) {
      button = element("button", { type: "button", textContent: label });
      button.setAttribute("aria-label", about ? `${label} ${about}` : label);
      button.addEventListener("click", action);
      place.append(button);
    }
    button.hidden = !applies;
  }
}

function timeText(seconds) {
  const minutes = Math.floor(seconds / 60);
  if (minutes >= 6000) return "more than 100 h";
  if (minutes >= 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return minutes ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.ceil(seconds)} s`;
}

/** Twice a second: the speed, as an average that forgets within some seconds, and the panel. */
setInterval(() => {
  if (!uploads.some(({ state }) => state === "sending")) {
    speed.at = 0;
    return;
  }
  const now = performance.now();
  const bytes = uploads.reduce((sum, { sent }) => sum + sent, 0);
  if (speed.at) {
    const current = (Math.max(bytes - speed.bytes, 0) * 1000) / (now - speed.at);
    speed.perSecond = speed.perSecond ? speed.perSecond * 0.8 + current * 0.2 : current;
  }
  Object.assign(speed, { bytes, at: now });
  show();
}, 500);

// Where files come from.

/** The files beneath an entry of a drop, with their paths. */
async function filesOf(entry, above = "") {
  const path = above + entry.name;
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => { entry.file(resolve, reject); });
    return [{ file, path }];
  }
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    // A reader returns a part of the entries at a time, and none at the end.
    const part = await new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
    if (part.length === 0) return found;
    for (const inner of part) found.push(...await filesOf(inner, `${path}/`));
  }
}

async function addDropped(transfer) {
  // The items are empty after the first pause, so all entries are taken before.
  const items = [...transfer.items].filter(({ kind }) => kind === "file");
  const dropped = items.map((item) => ({ entry: item.webkitGetAsEntry(), file: item.getAsFile() }));
  const files = [];
  let unreadable = 0;
  for (const { entry, file } of dropped) {
    try {
      if (entry) files.push(...await filesOf(entry));
      else if (file) files.push({ file, path: file.name });
    } catch {
      unreadable += 1;
    }
  }
  if (unreadable) announce(`${plural(unreadable, "file")} could not be read.`);
  add(files);
}

const picker = element("input", { type: "file", multiple: true, hidden: true, "aria-label": "Files to upload" });
picker.addEventListener("change", () => {
  add([...picker.files].map((file) => ({ file, path: file.webkitRelativePath || file.name })));
  picker.value = "";
});

/** Lets the user choose files, or a folder. */
function pick(isFolder) {
  picker.webkitdirectory = isFolder;
  picker.click();
}

/** Connects the buttons of the page, if this folder takes uploads. */
function offerUploads() {
  if (may("create")) offerUnfinished();
  for (const [id, isFolder] of [["upload-files", false], ["upload-folder", true]]) {
    const button = document.querySelector(`#${id}`);
    if (!button) continue;
    button.hidden = false;
    button.addEventListener("click", () => pick(isFolder));
  }
}

document.addEventListener("DOMContentLoaded", () => document.body.append(panel, picker));

const takesDrop = ({ dataTransfer }) => dataTransfer?.types.includes("Files");
const mark = (is) => document.body.classList.toggle("dropping", is);

addEventListener("dragover", (event) => {
  if (!takesDrop(event)) return;
  event.preventDefault(); // Otherwise the browser leaves the page and opens the file.
  event.dataTransfer.dropEffect = may("create") ? "copy" : "none";
  mark(may("create"));
});
addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) mark(false);
});
addEventListener("drop", (event) => {
  if (!takesDrop(event)) return;
  event.preventDefault();
  mark(false);
  if (may("create")) addDropped(event.dataTransfer);
});
addEventListener("beforeunload", (event) => {
  if (areUploading()) event.preventDefault(); // The browser asks whether to leave.
});
