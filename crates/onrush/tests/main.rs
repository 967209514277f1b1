//! The tests of the engine, in one binary: it is linked once. Tests that record the events of their
//! process or measure its memory run themselves in a child process (`testing::child::elsewhere`).

// Watchdogs, servers on each driver, clients, and the application of the scripts.
mod common;
// An application whose code panics or calls back wherever the engine calls it.
mod evil;
// Handshakes in memory, and certificates.
#[cfg(feature = "tls")]
mod tls;

// Entries of the access log: when, byte counts, outcome.
mod access_log;
// Entries of connections over the limit.
mod access_log_limit;
// Destructors of user code at the end of a server.
mod adversarial_ends;
// Handlers that try to stop their worker.
mod adversarial_handlers;
// Handlers that keep or leak what they were given.
mod adversarial_lifetimes;
// Tests of applications by single requests.
mod asking;
// Handlers that block their worker are reported.
mod blocked;
// Waits for a request body.
mod body_waits;
// The same bytes give the same responses on all drivers.
mod both_drivers;
// What the compiler says about mistakes in handlers.
mod compile_errors;
// Which responses are compressed, and their fields.
mod compression;
// Compressed responses that are slow, fail, or lose their client.
mod compression_streams;
// The limit on connections and descriptors.
mod connections;
// Queries, forms, JSON, cookies, redirects.
mod content;
// Handlers that are plain functions.
mod coroutine;
// Plain functions whose clients disconnect; their stacks.
mod coroutine_ends;
// Events of a connection, and subscribers that panic.
mod diagnosis;
// The end of a server.
mod drain;
// Server-sent events.
mod events;
// Clients and handlers that never wait do not starve others.
mod fairness;
// Files as responses.
mod files;
// Violations of framing, on all drivers.
mod framing;
// Hostile and broken peers.
mod hostile;
// HTTP/2.
mod http2;
// Types of the crate `http`.
mod http_types;
// Addresses, workers, and events that end a connection only.
mod lifecycle;
// A limit on the concurrent requests of a handler.
mod limited;
// Partial heads exhaust the receive memory.
mod memory_heads;
// Bodies and pipelined requests in little receive memory.
mod memory_requests;
// Clients that do not read, and their input.
mod memory_unread;
// Metrics count what clients have received.
mod metrics;
// Connections migrate from worker to worker.
mod migration;
// CPU work on an offload pool, on the simulator.
mod offload;
// CPU work on an offload pool, with real threads.
mod offload_real;
// A panic affects only its request.
mod panics;
// Idle connections move to another server.
mod passing;
// Programs for threads, and their ports to coroutines.
mod ported;
// A side that does not read makes the other side wait.
mod pressure;
// Connections that begin with a PROXY header.
mod proxy_protocol;
// The minimum transfer rate.
mod rates;
// Routes, parameters and precedence.
mod routing;
// Files with conditions and ranges.
mod served_files;
// The end of a server by a signal.
mod signals;
// States of routers, and methods that are not allowed.
mod states;
// Responses produced while they are sent.
mod streaming;
// Time limits, on a clock that the test controls.
mod timeouts;
// Clients that use the rules of TLS against the server.
#[cfg(feature = "tls")]
mod tls_attacks;
// Certificates and clients of a TLS configuration.
#[cfg(feature = "tls")]
mod tls_config;
// TLS connections: ends, time limits, what they share.
#[cfg(feature = "tls")]
mod tls_engine;
// Mistakes in certificates, keys and settings.
#[cfg(feature = "tls")]
mod tls_errors;
// Memory, handshakes and time of TLS connections.
#[cfg(feature = "tls")]
mod tls_limits;
// Memory of partial records and handshake messages.
#[cfg(feature = "tls")]
mod tls_memory;
// Resumption of TLS sessions.
#[cfg(feature = "tls")]
mod tls_sessions;
// Bodies, responses and ends over TLS.
#[cfg(feature = "tls")]
mod tls_streams;
// Tickets that wait for a response.
#[cfg(feature = "tls")]
mod tls_tickets;
// Warnings about certificates.
#[cfg(feature = "tls")]
mod tls_warnings;
// Rendered responses that clients do not read.
mod unread;
// Other protocols after a 101.
mod upgrade;
