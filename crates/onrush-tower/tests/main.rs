//! The tests of the crate, in one binary: it is linked once.

// Applications like the examples of axum.
mod apps;
// Raw requests, and responses to compare.
mod client;

// The same application on `axum::serve` and on Onrush.
mod same;
// Bodies of requests on other threads, and of responses.
mod bodies;
// HTTPS.
mod secure;
// WebSocket and other protocols.
mod upgrades;
// WebSocket over HTTP/2.
mod websocket_http2;
// What the cases of Autobahn say about WebSocket.
mod autobahn;
// Tables of a database, and the description of an API.
mod crud;
// A page in Chromium.
mod page;
// What an application gains.
mod gains;
// gRPC.
mod grpc;
// Services that are not ready, and that fail.
mod services;
