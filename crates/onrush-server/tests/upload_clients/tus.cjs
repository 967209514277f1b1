// Uploads with tus-js-client in parallel parts that are joined: whole, interrupted and continued,
// with a precondition, and aborted for good.
//
// Arguments: the folder of the package, the URL of the server, a file to upload.
"use strict";

const assert = require("node:assert");
const fs = require("node:fs");
const path = require("node:path");

const [tools, url, file] = process.argv.slice(2);
const tus = require(path.join(tools, "node_modules/tus-js-client"));
const content = fs.readFileSync(file);
const urls = path.join(path.dirname(file), "urls.json");
const urlStorage = new tus.FileUrlStorage(urls);

async function check(name) {
  const found = await fetch(`${url}/tus/${name}`);
  assert.strictEqual(found.status, 200, name);
  assert.strictEqual(found.headers.get("content-type"), "text/x-test");
  assert.ok(content.equals(Buffer.from(await found.arrayBuffer())), `${name} differs`);
}

/** An upload, and a promise of its end. */
function begin(name, options) {
  let upload;
  const done = new Promise((resolve, reject) => {
    upload = new tus.Upload(fs.createReadStream(file), {
      endpoint: `${url}/tus/`,
      metadata: { filename: name, filetype: "text/x-test" },
      parallelUploads: 4,
      chunkSize: 100_000,
      retryDelays: null,
      onSuccess: resolve,
      onError: reject,
      ...options,
    });
  });
  return { upload, done };
}

async function whole() {
  const { upload, done } = begin("whole", {});
  upload.start();
  await done;
  assert.match(upload.url, /\/tus\/whole\?upload-id=[0-9a-f]{32}$/);
  await check("whole");
  const head = await fetch(upload.url, { method: "HEAD", headers: { "Tus-Resumable": "1.0.0" } });
  assert.strictEqual(head.headers.get("upload-offset"), String(content.length));
  assert.match(head.headers.get("upload-concat"), /^final;http.* http/);
}

async function continued() {
  const stored = {
    urlStorage,
    storeFingerprintForResuming: true,
    removeFingerprintOnSuccess: true,
    chunkSize: 10_000,
  };
  const isStored = () => fs.existsSync(urls) && fs.readFileSync(urls, "utf8").includes("parallel");
  await new Promise((resolve, reject) => {
    const { upload, done } = begin("continued", {
      ...stored,
      onChunkComplete() {
        if (isStored()) {
          resolve(upload.abort());
        }
      },
    });
    upload.start();
    done.then(() => reject(new Error("it was not interrupted")), reject);
  });
  assert.strictEqual((await fetch(`${url}/tus/continued`)).status, 404);
  let sent = 0;
  const { upload, done } = begin("continued", {
    ...stored,
    onChunkComplete: (bytes) => (sent += bytes),
  });
  const [previous] = await upload.findPreviousUploads();
  assert.strictEqual(previous.parallelUploadUrls.length, 4);
  upload.resumeFromPreviousUpload(previous);
  upload.start();
  await done;
  assert.ok(sent < content.length, "it began again");
  await check("continued");
}

async function refused() {
  const { upload, done } = begin("whole", { headers: { "If-None-Match": "*" } });
  upload.start();
  await assert.rejects(done, (error) => error.originalResponse.getStatus() === 412);
  await upload.abort(true); // Terminates the parts.
  await check("whole");
}

async function main() {
  await whole();
  await continued();
  await refused();
}

main().then(
  () => console.log("done"),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
