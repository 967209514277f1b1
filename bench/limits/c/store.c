/*
 * A file store over HTTP/1.1 in C. Each thread has a listener (SO_REUSEPORT), an epoll instance and
 * edge-triggered connections.
 *
 *     limit-store [-t THREADS] [-p PORT] [-s] [-d] DIR
 *
 * GET and HEAD send a file of DIR by open, fstat and sendfile. PUT receives into a buffer, writes
 * to a temporary file and renames it. -s discards bodies instead, after receiving them into the
 * buffer; -d syncs the file before the rename and its folder after it. Each thread does its disk
 * I/O itself, so more threads than cores help with a slow disk.
 *
 * On SIGTERM it prints one line per thread, `worker NUMBER CONNECTIONS UPLOADS BYTES`, and exits.
 *
 * It supports only Content-Length as framing, and is strict about it. Unlike Onrush it has no
 * timeouts, ranges, conditional requests or escapes in paths, and does not create folders.
 *
 * Build: cc -std=c17 -O3 -Wall -Wextra -Werror -pthread -o target/bench/limit-store \
 *            bench/limits/c/store.c
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_MAX = 8192, EVENTS = 256, BODY_BUFFER = 256 * 1024, PATH_LEN_MAX = 1024 };

static const uint64_t BODY_MAX = (uint64_t)1 << 40;

static struct {
    int folder;
    uint16_t port;
    long threads;
    bool sink, durable;
} options = {.port = 8080, .threads = 1};

/* The state of a connection. */
enum state { READING_HEAD, READING_BODY, SENDING_FILE, LINGERING };

struct connection {
    int socket;
    enum state state;
    bool keep_alive, has_uploaded;
    /* The file that is sent or written, or -1; the offset in it; the bytes left. */
    int file;
    off_t offset;
    uint64_t left;
    char path[PATH_LEN_MAX];
    char temporary[48];
    size_t len;
    char head[HEAD_MAX];
};

struct worker {
    pthread_t thread;
    long number;
    uint64_t files_made;
    int epoll, listener;
    /* Counts: connections with an upload, uploads, and their bytes. */
    uint64_t uploaders, uploads, bytes;
    time_t now;
    char date[32];
    char *body;
};

struct request {
    char *method, *path;
    bool http_1_0, close, expects_continue, has_length, has_coding;
    int hosts;
    uint64_t length;
};

/* ---- responses ---- */

static const char *reason_of(int status) {
    switch (status) {
    case 200: return "OK";
    case 201: return "Created";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 409: return "Conflict";
    case 411: return "Length Required";
    case 413: return "Content Too Large";
    case 431: return "Request Header Fields Too Large";
    case 501: return "Not Implemented";
    case 505: return "HTTP Version Not Supported";
    case 507: return "Insufficient Storage";
    default: return "Internal Server Error";
    }
}

static const char *date_of(struct worker *worker) {
    time_t now = time(NULL);
    if (now != worker->now) {
        struct tm parts;
        gmtime_r(&now, &parts);
        strftime(worker->date, sizeof worker->date, "%a, %d %b %Y %H:%M:%S GMT", &parts);
        worker->now = now;
    }
    return worker->date;
}

/* Sends a head. It fits into the socket buffer, because no other response is being sent. Returns
 * false if the client has disconnected. */
static bool send_head(struct worker *worker, struct connection *c, int status, uint64_t length,
                      int flags) {
    char text[512], content[96] = "";
    if (status != 204)
        snprintf(content, sizeof content, "Content-Length: %llu\r\n", (unsigned long long)length);
    int len = snprintf(text, sizeof text,
                       "HTTP/1.1 %d %s\r\nServer: store\r\nDate: %s\r\n%s%s%s\r\n", status,
                       reason_of(status), date_of(worker), content,
                       status == 405 ? "Allow: GET, HEAD, PUT\r\n" : "",
                       c->keep_alive ? "" : "Connection: close\r\n");
    return send(c->socket, text, (size_t)len, MSG_NOSIGNAL | flags) == len;
}

/* Rejects a request. The body is not read, so the connection ends after the response. */
static bool reject(struct worker *worker, struct connection *c, int status) {
    c->keep_alive = false;
    c->state = LINGERING;
    c->len = 0;
    return send_head(worker, c, status, 0, 0) && shutdown(c->socket, SHUT_WR) == 0;
}

/* Called after a complete response. Returns false if the connection must be closed. */
static bool finished(struct connection *c) {
    c->state = READING_HEAD;
    return c->keep_alive;
}

/* ---- requests ---- */

static bool is_token(const char *text) {
    for (; *text; text++) {
        bool alphanumeric = (*text >= '0' && *text <= '9') || (*text >= 'a' && *text <= 'z') ||
                            (*text >= 'A' && *text <= 'Z');
        if (!alphanumeric && !strchr("!#$%&'*+-.^_`|~", *text)) return false;
    }
    return true;
}

/* Whether a list such as "a, close" contains the element. */
static bool has_element(const char *list, const char *element) {
    size_t len = strlen(element);
    while (*list) {
        list += strspn(list, " \t,");
        size_t here = strcspn(list, " \t,");
        if (here == len && strncasecmp(list, element, len) == 0) return true;
        list += here;
    }
    return false;
}

static bool parse_length(const char *text, uint64_t *length) {
    if (!*text || strspn(text, "0123456789") != strlen(text) || strlen(text) > 18) return false;
    *length = strtoull(text, NULL, 10);
    return true;
}

static bool take_field(struct request *request, char *name, char *value) {
    if (!strcasecmp(name, "host")) {
        request->hosts++;
    } else if (!strcasecmp(name, "content-length")) {
        uint64_t length;
        if (!parse_length(value, &length)) return false;
        if (request->has_length && length != request->length) return false;
        request->has_length = true;
        request->length = length;
    } else if (!strcasecmp(name, "transfer-encoding")) {
        request->has_coding = true;
    } else if (!strcasecmp(name, "connection")) {
        request->close |= has_element(value, "close");
    } else if (!strcasecmp(name, "expect")) {
        request->expects_continue = !strcasecmp(value, "100-continue");
    }
    return true;
}

/* Parses the lines before `end` and splits them into strings. Returns an error status, or 0. */
static int parse(char *line, char *end, struct request *request) {
    if (memchr(line, 0, (size_t)(end - line))) return 400;
    for (bool first = true; line < end; first = false) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop || stop == line || stop[-1] != '\r') return 400;
        stop[-1] = 0;
        if (strchr(line, '\r')) return 400;
        if (first) {
            char *space = strchr(line, ' '), *last = strrchr(line, ' ');
            if (!space || space == last || strchr(space + 1, ' ') != last) return 400;
            *space = *last = 0;
            request->method = line;
            request->path = space + 1;
            if (!*line || !is_token(line) || strncmp(last + 1, "HTTP/", 5)) return 400;
            request->http_1_0 = !strcmp(last + 1, "HTTP/1.0");
            if (!request->http_1_0 && strcmp(last + 1, "HTTP/1.1")) return 505;
        } else {
            char *colon = strchr(line, ':');
            if (!colon || colon == line) return 400;
            *colon = 0;
            char *value = colon + 1 + strspn(colon + 1, " \t"), *tail = value + strlen(value);
            while (tail > value && (tail[-1] == ' ' || tail[-1] == '\t')) *--tail = 0;
            if (!is_token(line) || !take_field(request, line, value)) return 400;
        }
        line = stop + 1;
    }
    if (request->hosts > 1 || (request->hosts == 0 && !request->http_1_0)) return 400;
    if (request->has_coding) return request->has_length ? 400 : 501;
    return 0;
}

/* Converts a target to a path relative to the folder, without its query. Rejects escapes, and empty
 * or hidden names. Returns an error status, or 0. */
static int relative_path(const char *target, char *path) {
    size_t len = strcspn(target, "?");
    if (target[0] != '/' || len >= PATH_LEN_MAX || memchr(target, '%', len)) return 400;
    memcpy(path, target + 1, len - 1);
    path[len - 1] = 0;
    for (const char *name = path;; name++) {
        if (*name == '.' || *name == '/' || *name == 0) return 404;
        name = strchr(name, '/');
        if (!name) return 0;
    }
}

/* ---- GET ---- */

/* Sends a part of the file, or all of it. Returns false if the connection must be closed. */
static bool send_file(struct connection *c) {
    while (c->left > 0) {
        size_t piece = c->left < 0x40000000 ? (size_t)c->left : 0x40000000;
        ssize_t sent = sendfile(c->socket, c->file, &c->offset, piece);
        if (sent < 0 && errno == EAGAIN) return true;
        if (sent <= 0) return false;
        c->left -= (uint64_t)sent;
    }
    close(c->file);
    c->file = -1;
    return finished(c);
}

static bool get(struct worker *worker, struct connection *c, bool head_only) {
    int file = openat(options.folder, c->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    struct stat status;
    if (file < 0 || fstat(file, &status) < 0 || !S_ISREG(status.st_mode)) {
        if (file >= 0) close(file);
        return send_head(worker, c, 404, 0, 0) && finished(c);
    }
    uint64_t length = (uint64_t)status.st_size;
    bool has_body = !head_only && length > 0;
    if (!send_head(worker, c, 200, length, has_body ? MSG_MORE : 0) || !has_body) {
        close(file);
        return finished(c);
    }
    c->file = file;
    c->offset = 0;
    c->left = length;
    c->state = SENDING_FILE;
    return send_file(c);
}

/* ---- PUT ---- */

static bool sync_parent(const char *path) {
    const char *name = strrchr(path, '/');
    if (!name) return fsync(options.folder) == 0;
    char parent[PATH_LEN_MAX];
    memcpy(parent, path, (size_t)(name - path));
    parent[name - path] = 0;
    int folder = openat(options.folder, parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool synced = folder >= 0 && fsync(folder) == 0;
    if (folder >= 0) close(folder);
    return synced;
}

/* Renames the temporary file to its path. Returns the status of the response. */
static int commit(struct connection *c) {
    if (options.sink) return 204;
    bool written = !options.durable || fsync(c->file) == 0;
    written = close(c->file) == 0 && written;
    c->file = -1;
    bool replaces = faccessat(options.folder, c->path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    int moved = written ? renameat(options.folder, c->temporary, options.folder, c->path) : -1;
    if (moved < 0) {
        int error = errno;
        unlinkat(options.folder, c->temporary, 0);
        return error == ENOENT || error == ENOTDIR || error == EISDIR ? 409 : 500;
    }
    if (options.durable && !sync_parent(c->path)) return 500;
    return replaces ? 204 : 201;
}

/* Returns the status for a failed write, or 0. */
static int write_all(int file, const char *bytes, size_t len) {
    while (len > 0) {
        ssize_t written = write(file, bytes, len);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return errno == ENOSPC || errno == EDQUOT ? 507 : 500;
        bytes += written;
        len -= (size_t)written;
    }
    return 0;
}

/* Processes a part of a body. Returns an error status, or 0. */
static int process_body(struct connection *c, const char *bytes, size_t len) {
    c->left -= len;
    return options.sink ? 0 : write_all(c->file, bytes, len);
}

static void abandon(struct connection *c) {
    if (c->file < 0) return;
    close(c->file);
    c->file = -1;
    if (c->state == READING_BODY) unlinkat(options.folder, c->temporary, 0);
}

static bool receive_body(struct worker *worker, struct connection *c) {
    int failed = 0;
    while (c->left > 0 && !failed) {
        size_t want = c->left < BODY_BUFFER ? (size_t)c->left : BODY_BUFFER;
        ssize_t len = recv(c->socket, worker->body, want, 0);
        if (len < 0 && errno == EAGAIN) return true;
        if (len <= 0) return false;
        worker->bytes += (uint64_t)len;
        failed = process_body(c, worker->body, (size_t)len);
    }
    if (failed) {
        abandon(c);
        return reject(worker, c, failed);
    }
    worker->uploads++;
    return send_head(worker, c, commit(c), 0, 0) && finished(c);
}

static bool put(struct worker *worker, struct connection *c, const struct request *request) {
    if (!request->has_length) return reject(worker, c, 411);
    if (request->length > BODY_MAX) return reject(worker, c, 413);
    if (!options.sink) {
        snprintf(c->temporary, sizeof c->temporary, ".store-%ld-%llu", worker->number,
                 (unsigned long long)worker->files_made++);
        int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
        c->file = openat(options.folder, c->temporary, flags, 0644);
        if (c->file < 0) return reject(worker, c, 500);
    }
    if (!c->has_uploaded) worker->uploaders++;
    c->has_uploaded = true;
    c->state = READING_BODY;
    c->left = request->length;
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (request->expects_continue && c->len == 0)
        send(c->socket, interim, sizeof interim - 1, MSG_NOSIGNAL);
    /* Bytes after the head belong to the body, then to the next request. */
    size_t here = c->len < c->left ? c->len : (size_t)c->left;
    worker->bytes += here;
    int failed = process_body(c, c->head, here);
    if (failed) {
        abandon(c);
        return reject(worker, c, failed);
    }
    memmove(c->head, c->head + here, c->len - here);
    c->len -= here;
    return receive_body(worker, c);
}

/* ---- connections ---- */

/* Serves the request whose head has `len` bytes. Returns false if the connection must be closed. */
static bool serve(struct worker *worker, struct connection *c, size_t len) {
    char head[HEAD_MAX];
    memcpy(head, c->head, len);
    memmove(c->head, c->head + len, c->len - len);
    c->len -= len;
    struct request request = {0};
    int error = parse(head, head + len - 2, &request);
    if (error) return reject(worker, c, error);
    c->keep_alive = !request.http_1_0 && !request.close;
    error = relative_path(request.path, c->path);
    if (error) return reject(worker, c, error);
    if (!strcmp(request.method, "PUT")) return put(worker, c, &request);
    if (request.length > 0) return reject(worker, c, 413);
    if (!strcmp(request.method, "GET")) return get(worker, c, false);
    if (!strcmp(request.method, "HEAD")) return get(worker, c, true);
    return reject(worker, c, 405);
}

/* Receives and serves requests until no more data is available. */
static bool receive_heads(struct worker *worker, struct connection *c) {
    while (c->state == READING_HEAD) {
        char *end = memmem(c->head, c->len, "\r\n\r\n", 4);
        if (end) {
            if (!serve(worker, c, (size_t)(end - c->head) + 4)) return false;
            continue;
        }
        if (c->len == HEAD_MAX) return reject(worker, c, 431);
        ssize_t len = recv(c->socket, c->head + c->len, HEAD_MAX - c->len, 0);
        if (len < 0 && errno == EAGAIN) return true;
        if (len <= 0) return false;
        c->len += (size_t)len;
    }
    return true;
}

/* Discards what a rejected client still sends. Otherwise the close would reset the connection
 * before the client has read the response. */
static bool linger(struct worker *worker, struct connection *c) {
    ssize_t len;
    while ((len = recv(c->socket, worker->body, BODY_BUFFER, 0)) > 0) {}
    return len < 0 && errno == EAGAIN;
}

/* Handles an event of a connection. Returns false if the connection must be closed. */
static bool handle_event(struct worker *worker, struct connection *c) {
    if (c->state == SENDING_FILE && !send_file(c)) return false;
    if (c->state == READING_BODY && !receive_body(worker, c)) return false;
    if (c->state == READING_HEAD && !receive_heads(worker, c)) return false;
    return c->state != LINGERING || linger(worker, c);
}

static void accept_all(struct worker *worker) {
    int socket;
    while ((socket = accept4(worker->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct connection *c = malloc(sizeof *c);
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
        if (!c || epoll_ctl(worker->epoll, EPOLL_CTL_ADD, socket, &event) < 0) {
            free(c);
            close(socket);
            continue;
        }
        c->socket = socket;
        c->state = READING_HEAD;
        c->has_uploaded = false;
        c->file = -1;
        c->len = 0;
    }
}

static void *work(void *argument) {
    struct worker *worker = argument;
    struct epoll_event events[EVENTS];
    for (;;) {
        int count = epoll_wait(worker->epoll, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c) {
                accept_all(worker);
            } else if (!handle_event(worker, c)) {
                abandon(c);
                close(c->socket);
                free(c);
            }
        }
    }
    return NULL;
}

/* ---- start ---- */

static void die(const char *what) {
    fprintf(stderr, "limit-store: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int listen_on(uint16_t port) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (listener < 0) die("socket");
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0) die("bind");
    if (listen(listener, 16384) < 0) die("listen");
    return listener;
}

static void start(struct worker *worker, long number) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    *worker = (struct worker){.number = number, .body = malloc(BODY_BUFFER)};
    worker->listener = listen_on(options.port);
    worker->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!worker->body || worker->epoll < 0) die("start");
    if (epoll_ctl(worker->epoll, EPOLL_CTL_ADD, worker->listener, &event) < 0) die("epoll_ctl");
    if (pthread_create(&worker->thread, NULL, work, worker)) die("pthread_create");
}

static long number(const char *text, long min, long max) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || end == text || value < min || value > max) {
        fprintf(stderr, "limit-store: %s is not a number from %ld to %ld\n", text, min, max);
        exit(2);
    }
    return value;
}

int main(int count, char **arguments) {
    for (int option; (option = getopt(count, arguments, "t:p:sd")) != -1;) {
        switch (option) {
        case 't': options.threads = number(optarg, 1, 1024); break;
        case 'p': options.port = (uint16_t)number(optarg, 1, 65535); break;
        case 's': options.sink = true; break;
        case 'd': options.durable = true; break;
        default: return 2;
        }
    }
    if (optind != count - 1) {
        fprintf(stderr, "usage: limit-store [-t THREADS] [-p PORT] [-s] [-d] DIR\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    options.folder = open(arguments[optind], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (options.folder < 0) die(arguments[optind]);
    struct worker *workers = calloc((size_t)options.threads, sizeof *workers);
    if (!workers) die("memory");
    /* The threads inherit the blocked signal, so that only this thread receives it. */
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    for (long i = 0; i < options.threads; i++) start(&workers[i], i);
    for (int got = 0; got != SIGTERM;) sigwait(&ends, &got);
    /* The threads still run. The counts are exact if the clients have stopped before. */
    for (long i = 0; i < options.threads; i++) {
        const struct worker *w = &workers[i];
        printf("worker %ld %llu %llu %llu\n", i, (unsigned long long)w->uploaders,
               (unsigned long long)w->uploads, (unsigned long long)w->bytes);
    }
    return 0;
}
