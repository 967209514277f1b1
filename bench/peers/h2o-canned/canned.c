/*
 * libh2o on its own event loop, with a response that is in memory. It speaks HTTP/2, over TLS by
 * ALPN and without TLS by prior knowledge, and HTTP/1.1.
 *
 *     h2o-canned PORT [CERTIFICATE KEY]
 *     h2o-canned --version
 *
 * It listens on 127.0.0.1 and answers every request with 200 and 13 bytes, after it has received
 * the request's body, which libh2o collects in memory. CERTIFICATE and KEY are PEM files; with them
 * the server speaks TLS 1.3 only.
 *
 * Build: cc -std=gnu17 -O3 -Wall -Wextra -o target/bench/h2o-canned \
 *            bench/peers/h2o-canned/canned.c \
 *            -lh2o-evloop -lssl -lcrypto -lz -lwslay -lm -lpthread
 */
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#define H2O_USE_LIBUV 0
#include "h2o.h"
#include "h2o/version.h"

enum { BACKLOG = 4096, WAIT_MS = 10000 };

/* The default of 10 s would close the connections of a measurement of idle ones. */
static const uint64_t IDLE_MS = 75000;

/* libh2o keeps longer bodies in a temporary file, which costs more. */
static const size_t IN_MEMORY_BYTES_MAX = (size_t)1 << 30;

static h2o_globalconf_t config;
static h2o_context_t context;
static h2o_accept_ctx_t accepting;

static int reply(h2o_handler_t *self, h2o_req_t *request)
{
    static h2o_generator_t generator = {NULL, NULL};
    h2o_iovec_t body = h2o_iovec_init(H2O_STRLIT("Hello, World!"));

    (void)self;
    request->res.status = 200;
    request->res.reason = "OK";
    request->res.content_length = body.len;
    h2o_add_header(&request->pool, &request->res.headers, H2O_TOKEN_CONTENT_TYPE, NULL,
                   H2O_STRLIT("text/plain"));
    h2o_start_response(request, &generator);
    h2o_send(request, &body, 1, H2O_SEND_STATE_FINAL);
    return 0;
}

static void on_accept(h2o_socket_t *listener, const char *error)
{
    h2o_socket_t *socket;

    if (error != NULL)
        return;
    while ((socket = h2o_evloop_socket_accept(listener)) != NULL)
        h2o_accept(&accepting, socket);
}

/* NULL if one of the files is unusable. */
static SSL_CTX *tls(const char *certificate, const char *key)
{
    SSL_CTX *tls = SSL_CTX_new(TLS_server_method());

    if (tls == NULL || SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION) != 1 ||
        SSL_CTX_use_certificate_chain_file(tls, certificate) != 1 ||
        SSL_CTX_use_PrivateKey_file(tls, key, SSL_FILETYPE_PEM) != 1)
        return NULL;
    h2o_ssl_register_alpn_protocols(tls, h2o_http2_alpn_protocols);
    return tls;
}

/* The listening socket, or -1. */
static int listen_on(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    int one = 1;
    int listener = socket(AF_INET, SOCK_STREAM, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, BACKLOG) != 0)
        return -1;
    return listener;
}

int main(int count, char **arguments)
{
    h2o_hostconf_t *host;
    h2o_handler_t *handler;
    h2o_socket_t *listener;
    long port = count == 2 || count == 4 ? strtol(arguments[1], NULL, 10) : 0;
    int descriptor;

    if (count == 2 && strcmp(arguments[1], "--version") == 0) {
        puts("h2o-canned with libh2o " H2O_VERSION);
        return 0;
    }
    if (port < 1 || port > UINT16_MAX) {
        fprintf(stderr, "usage: h2o-canned PORT [CERTIFICATE KEY] | --version\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    h2o_socket_buffer_mmap_settings.threshold = IN_MEMORY_BYTES_MAX;
    h2o_config_init(&config);
    config.http1.req_timeout = IDLE_MS;
    config.http2.idle_timeout = IDLE_MS;
    host = h2o_config_register_host(&config, h2o_iovec_init(H2O_STRLIT("default")), 65535);
    handler = h2o_create_handler(h2o_config_register_path(host, "/", 0), sizeof *handler);
    handler->on_req = reply;
    h2o_context_init(&context, h2o_evloop_create(), &config);
    accepting.ctx = &context;
    accepting.hosts = config.hosts;
    if (count == 4 && (accepting.ssl_ctx = tls(arguments[2], arguments[3])) == NULL) {
        fprintf(stderr, "h2o-canned: the certificate or its key is unusable\n");
        return 1;
    }
    if ((descriptor = listen_on((uint16_t)port)) < 0) {
        perror("h2o-canned: cannot listen");
        return 1;
    }
    listener = h2o_evloop_socket_create(context.loop, descriptor, H2O_SOCKET_FLAG_DONT_READ);
    h2o_socket_read_start(listener, on_accept);
    while (h2o_evloop_run(context.loop, WAIT_MS) == 0)
        ;
    return 1;
}
