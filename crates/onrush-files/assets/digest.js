// The digest of a part of a file. Browsers offer one only on pages that come over HTTPS or from this
// machine, so a second implementation is needed for the others, where it matters most.

/** The constants of SHA-256 (FIPS 180-4 §4.2.2, §5.3.3): roots of the first primes. */
const [SHA256_ROUND, SHA256_START] = (() => {
  const primes = [];
  for (let number = 2; primes.length < 64; number += 1) {
    if (primes.every((prime) => number % prime !== 0)) primes.push(number);
  }
  const fraction = (root) => ((root - Math.floor(root)) * 2 ** 32) | 0;
  return [primes.map((prime) => fraction(Math.cbrt(prime))),
    primes.slice(0, 8).map((prime) => fraction(Math.sqrt(prime)))];
})();

/** Adds blocks of 64 bytes to a state of eight words. */
function sha256Blocks(state, bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const words = new Int32Array(64);
  const turn = (word, count) => (word >>> count) | (word << (32 - count));
  for (let at = 0; at < bytes.byteLength; at += 64) {
    for (let i = 0; i < 16; i += 1) words[i] = view.getInt32(at + 4 * i);
    for (let i = 16; i < 64; i += 1) {
      const early = words[i - 15];
      const late = words[i - 2];
      words[i] = words[i - 16] + (turn(early, 7) ^ turn(early, 18) ^ (early >>> 3))
        + words[i - 7] + (turn(late, 17) ^ turn(late, 19) ^ (late >>> 10));
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; i += 1) {
      const one = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g))
        + SHA256_ROUND[i] + words[i]) | 0;
      const two = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + one) | 0;
      d = c;
      c = b;
      b = a;
      a = (one + two) | 0;
    }
    [a, b, c, d, e, f, g, h].forEach((word, i) => { state[i] += word; });
  }
}

/** SHA-256 of a buffer, in steps between which the page stays responsive. */
async function sha256InSteps(buffer) {
  const bytes = new Uint8Array(buffer);
  const state = Int32Array.from(SHA256_START);
  const whole = bytes.length - (bytes.length % 64);
  const step = 1024 * 1024;
  for (let at = 0; at < whole; at += step) {
    sha256Blocks(state, bytes.subarray(at, Math.min(at + step, whole)));
    await new Promise((resolve) => { setTimeout(resolve); });
  }
  const rest = bytes.length - whole;
  const last = new Uint8Array(rest < 56 ? 64 : 128);
  last.set(bytes.subarray(whole));
  last[rest] = 0x80;
  new DataView(last.buffer).setBigUint64(last.length - 8, BigInt(bytes.length) * 8n);
  sha256Blocks(state, last);
  const digest = new DataView(new ArrayBuffer(32));
  state.forEach((word, i) => digest.setInt32(4 * i, word));
  return digest.buffer;
}

/** The value of `Content-Digest` (RFC 9530) for this content. */
async function contentDigest(buffer) {
  const digest = globalThis.crypto.subtle ? await crypto.subtle.digest("SHA-256", buffer)
    : await sha256InSteps(buffer);
  return `sha-256=:${btoa(String.fromCharCode(...new Uint8Array(digest)))}:`;
}
