// A client of node:https. Arguments: the URL of the server, and the file of its authority.
import assert from 'node:assert';
import fs from 'node:fs';
import https from 'node:https';

const [base, authority] = process.argv.slice(2);
const ca = fs.readFileSync(authority);

function exchange(agent, method, path, headers = {}, body) {
  return new Promise((resolve, reject) => {
    const request = https.request(base + path, { agent, method, headers }, (response) => {
      const chunks = [];
      // The agent takes the socket at the end.
      const { socket } = response;
      const [protocol, resumed] = [socket.getProtocol(), socket.isSessionReused()];
      response.on('data', (chunk) => chunks.push(chunk));
      response.on('error', reject);
      response.on('end', () => {
        resolve({
          status: response.statusCode,
          headers: response.headers,
          content: Buffer.concat(chunks),
          protocol,
          resumed,
          socket,
        });
      });
    });
    request.on('error', reject);
    request.end(body);
  });
}

for (const version of ['TLSv1.2', 'TLSv1.3']) {
  const options = { ca, minVersion: version, maxVersion: version };
  const kept = new https.Agent({ ...options, keepAlive: true, maxSockets: 1 });
  const large = Buffer.alloc(3_000_000, '0123456789');
  const put = await exchange(kept, 'PUT', '/from-node', {}, large);
  assert.equal(Math.floor(put.status / 100), 2);
  assert.equal(put.protocol, version);
  const got = await exchange(kept, 'GET', '/from-node');
  assert.ok(got.content.equals(large));
  assert.equal(got.socket, put.socket, 'one connection');
  const head = await exchange(kept, 'HEAD', '/from-node');
  assert.equal(head.headers['content-length'], String(large.length));
  const range = await exchange(kept, 'GET', '/from-node', { Range: 'bytes=3-6' });
  assert.deepEqual([range.status, range.content.toString()], [206, '3456']);
  kept.destroy();
  // An agent without kept connections resumes sessions.
  const agent = new https.Agent({ ...options, keepAlive: false });
  const first = await exchange(agent, 'GET', '/from-node');
  const second = await exchange(agent, 'GET', '/from-node');
  assert.deepEqual([first.resumed, second.resumed], [false, true], version);
}
console.log('done');
