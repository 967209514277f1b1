// A server on node:http in the style of its documentation, for measurements: one process.
//
//     node server.mjs PORT      serves /, /json and POST /echo

import { createServer } from 'node:http';

const ECHO_BYTES_MAX = 1 << 20;
/** The default of nginx. The default of node, 5 s, would close idle connections. */
const KEEP_ALIVE_TIMEOUT_MS = 75_000;

function respond(response, type, body) {
  response.writeHead(200, { 'Content-Type': type, 'Content-Length': Buffer.byteLength(body) });
  response.end(body);
}

function reject(response, status, text, fields = {}) {
  response.writeHead(status, { 'Content-Type': 'text/plain; charset=utf-8', ...fields });
  response.end(text);
}

function echo(request, response) {
  const pieces = [];
  let length = 0;
  request.on('data', (piece) => {
    length += piece.length;
    if (length <= ECHO_BYTES_MAX) {
      pieces.push(piece);
    } else if (!response.headersSent) {
      pieces.length = 0;
      reject(response, 413, 'too large', { Connection: 'close' });
    }
  });
  request.on('end', () => {
    if (length <= ECHO_BYTES_MAX) {
      const body = pieces.length === 1 ? pieces[0] : Buffer.concat(pieces, length);
      respond(response, 'application/octet-stream', body);
    }
  });
}

const routes = {
  '/': ['GET', (_, response) => respond(response, 'text/plain; charset=utf-8', 'Hello, World!')],
  '/json': [
    'GET',
    (_, response) =>
      respond(response, 'application/json', JSON.stringify({ message: 'Hello, World!' })),
  ],
  '/echo': ['POST', echo],
};

const port = Number(process.argv[2]);
if (!Number.isInteger(port) || port < 0 || port > 65535) {
  console.error('usage: node server.mjs PORT');
  process.exit(2);
}
const options = { keepAliveTimeout: KEEP_ALIVE_TIMEOUT_MS };
createServer(options, (request, response) => {
  const route = Object.hasOwn(routes, request.url) ? routes[request.url] : undefined;
  if (route === undefined) {
    reject(response, 404, 'not found');
  } else if (request.method !== route[0] && !(request.method === 'HEAD' && route[0] === 'GET')) {
    reject(response, 405, 'method not allowed', { Allow: route[0] });
  } else {
    route[1](request, response);
  }
}).listen({ port, host: '127.0.0.1', backlog: 4096 });
