// Sends a file: a small one with one PUT, a large one in parts, as an upload that continues
// (docs/uploads.md). The server verifies the digest of each part. A part is sent again if it was
// damaged or its connection was lost; the others are not.

/** Larger files are sent in parts of this size, if the server offers it. */
const PART_BYTES = 8 * 1024 * 1024;
/** The maximum number of parts of a file. The parts of a very large one are larger. */
const PARTS_MAX = 10_000;
/** How many parts are sent at a time: of a file, and of all. Browsers open six connections. */
const LANES = 3;
const LANES_OF_ALL = 4;
/** How often a request is sent before the upload fails, and the user has to retry. */
const ATTEMPTS = 6;
/** The first time between two attempts, in milliseconds. Each further one is twice as long. */
const RETRY_AFTER = 500;
/** A request that was not sent. */
const ABORTED = { status: 0, text: "" };
/** After these statuses the same request may succeed. */
const PASSING = [0, 408, 409, 429, 500, 502, 503, 504];

/**
 * Sends a request. Calls `progress` with the bytes of the body that are sent. Resolves to the status,
 * the text, and a function that returns a field of the response. Status 0: there was none.
 */
function sendBody(method, url, fields = {}, body = null, progress = () => {}, signal = undefined) {
  return new Promise((resolve) => {
    const sending = new XMLHttpRequest(); // fetch does not report the progress of an upload.
    const abort = () => sending.abort();
    sending.open(method, url);
    for (const [name, value] of Object.entries(fields)) sending.setRequestHeader(name, value);
    sending.upload.addEventListener("progress", (event) => progress(event.loaded));
    sending.addEventListener("loadend", () => {
      signal?.removeEventListener("abort", abort);
      const { status, responseText: text } = sending;
      resolve({ status, text, field: (name) => sending.getResponseHeader(name) });
    });
    signal?.addEventListener("abort", abort);
    sending.send(body);
    if (signal?.aborted) abort();
  });
}

/** Sends a request until it does not fail for a passing reason, or `isAgain` says no. */
async function sendPatiently(job, signal, send, isAgain = ({ status }) => PASSING.includes(status)) {
  for (let attempt = 1; ; attempt += 1) {
    const result = await send();
    if (signal.aborted || attempt === ATTEMPTS || !isAgain(result)) return result;
    job.note = "waiting to try again";
    show();
    await new Promise((resolve) => {
      setTimeout(resolve, RETRY_AFTER * 2 ** (attempt - 1));
      signal.addEventListener("abort", resolve, { once: true });
    });
    job.note = "";
    if (signal.aborted) return result;
  }
}

const onlyNew = ({ replace }) => (replace ? {} : { "If-None-Match": "*" });

const putWhole = (job, progress, signal) =>
  sendBody("PUT", job.url, onlyNew(job), job.file, progress, signal);

/** The parts of a file that the server has, or does not have, by the field of its response. */
function partsThat(haveArrived, size, partBytes, field) {
  const bits = atob((field("Onrush-Parts") ?? "").replaceAll(":", ""));
  const isThere = (part) => Boolean(bits.charCodeAt(Math.floor(part / 8)) & (1 << (part % 8)));
  const all = Array.from({ length: Math.ceil(size / partBytes) }, (_, part) => part);
  return all.filter((part) => isThere(part) === haveArrived);
}

const bytesOfPart = (part, size, partBytes) => Math.min(partBytes, size - part * partBytes);

const bytesOfParts = (parts, size, partBytes) =>
  parts.reduce((sum, part) => sum + bytesOfPart(part, size, partBytes), 0);

let lanesInUse = 0;
const waitingForLane = [];

/** Runs an action when there are not too many others. */
async function inLane(action) {
  if (lanesInUse < LANES_OF_ALL) lanesInUse += 1;
  else await new Promise((resolve) => { waitingForLane.push(resolve); });
  try {
    return await action();
  } finally {
    const next = waitingForLane.shift();
    if (next) next();
    else lanesInUse -= 1;
  }
}

/** Begins an upload, or finds out what is missing. Resolves to a response if that is the end. */
async function openUpload(job, signal) {
  const { file, upload } = job;
  if (upload) {
    const { url } = upload;
    const result = await sendPatiently(job, signal, () => sendBody("HEAD", url, {}, null, () => {}, signal));
    if (result.status === 204) {
      if (result.field("Upload-Complete") === "?1") return result;
      upload.missing = partsThat(false, file.size, upload.partBytes, result.field);
      return undefined;
    }
    if (result.status !== 404) return result;
    forget(job); // It has expired.
  }
  const partBytes = PART_BYTES * Math.ceil(file.size / PART_BYTES / PARTS_MAX);
  const fields = {
    ...onlyNew(job), "Upload-Complete": "?0", "Upload-Length": file.size, "Onrush-Part-Size": partBytes,
  };
  if (file.type) fields["Content-Type"] = file.type;
  const begin = () => sendBody("PUT", job.url, fields, null, () => {}, signal);
  const result = await sendPatiently(job, signal, begin);
  if (result.status !== 201 || signal.aborted) return result;
  // The path of the object is known: a proxy may have changed it for the server.
  const { search } = new URL(result.field("Location"), job.url);
  const seconds = Number(/max-age=(\d+)/.exec(result.field("Upload-Limit"))?.[1] ?? 3600);
  job.upload = { url: job.url + search, partBytes, lifetime: seconds * 1000 };
  job.upload.missing = partsThat(false, file.size, partBytes, result.field);
  remember(job);
  return undefined;
}

/** Sends one part. Resolves to a response if that has failed. */
async function putPart(job, part, progress, signal) {
  const { file, upload: { url, partBytes } } = job;
  const from = part * partBytes;
  const end = Math.min(from + partBytes, file.size);
  const body = file.slice(from, end);
  let digest;
  try {
    digest = await contentDigest(await body.arrayBuffer());
  } catch {
    return { status: 0, problem: "The file has changed or cannot be read. Add it again." };
  }
  const fields = {
    "Upload-Complete": "?0", "Upload-Offset": from, "Content-Type": "application/partial-upload",
    "Content-Digest": digest,
  };
  const send = () => sendBody("PATCH", url, fields, body, progress, signal);
  const isAgain = ({ status, text }) =>
    PASSING.includes(status) || (status === 400 && text.includes("digest"));
  const result = await sendPatiently(job, signal, send, isAgain);
  return isSuccess(result.status) ? undefined : result;
}

/** Sends a large file. `job.upload` is what was begun before. */
async function putParts(job, progress, signal) {
  const end = await openUpload(job, signal);
  if (end) {
    if (isSuccess(end.status)) forget(job);
    return end;
  }
  const { file, upload } = job;
  const bytesOf = (part) => bytesOfPart(part, file.size, upload.partBytes);
  let done = file.size - bytesOfParts(upload.missing, file.size, upload.partBytes);
  const sending = new Map();
  const report = () => progress([...sending.values()].reduce((sum, bytes) => sum + bytes, done));
  let failure;
  const lane = async () => {
    for (let part = upload.missing.shift(); part !== undefined; part = upload.missing.shift()) {
      const sent = part;
      const tell = (bytes) => {
        sending.set(sent, Math.min(bytes, bytesOf(sent)));
        report();
      };
      const failed = await inLane(() => (failure || signal.aborted ? ABORTED : putPart(job, sent, tell, signal)));
      sending.delete(sent);
      failure ??= failed ?? (signal.aborted ? ABORTED : undefined);
      if (failure) return;
      done += bytesOf(sent);
      report();
      remember(job);
    }
  };
  report();
  await Promise.all(Array.from({ length: LANES }, lane));
  if (failure) return failure;
  const fields = { "Upload-Complete": "?1", "Upload-Offset": file.size, "Content-Type": "application/partial-upload" };
  const finish = () => sendBody("PATCH", upload.url, fields, null, () => {}, signal);
  const result = await sendPatiently(job, signal, finish);
  // The response to an earlier attempt was lost.
  const isComplete = result.status === 400 && result.text.includes("completed-upload");
  if (isSuccess(result.status) || isComplete || [404, 412].includes(result.status)) forget(job);
  return isComplete ? { ...result, status: 204 } : result;
}

/**
 * Sends the file of a job to its URL. Calls `progress` with the bytes that the server may have.
 * Resolves to the status and the text of the response, and to a `problem` if it knows more. Called
 * again, it continues an upload in parts.
 */
function transport(job, progress, signal) {
  const offersParts = document.querySelector("main").dataset.uploads === "continue";
  const inParts = job.upload || (offersParts && job.file.size > PART_BYTES);
  return inParts ? putParts(job, progress, signal) : putWhole(job, progress, signal);
}
