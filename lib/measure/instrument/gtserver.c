/* gtserver: a streaming server whose timings are known, to find the error of a load client.
 *
 * It speaks enough of the OpenAI protocol for a load client: POST /v1/completions and /v1/chat/completions (streamed,
 * max_tokens and stream_options.include_usage honoured), GET /v1/models, /health, /stats, /truth.csv, POST /reset.
 * Each token is sent as one event in one HTTP chunk in one write, at its due time:
 *
 *     first token   arrival + ttft          token k+1   due of token k + itl, times a lognormal factor if sigma > 0
 *
 * Truth, per request: arrival (the kernel's receive stamp of the request's last segment) and, per token, the clock
 * read just before the send. Both are CLOCK_MONOTONIC ns. One thread, epoll, no dependencies; it spins for the last
 * 60 us before a due time, so give it a core of its own.
 *
 *     cc -O2 -o gtserver gtserver.c -lm        README.md beside it says what is compared
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef int64_t ns_t;
#define SECOND 1000000000LL
#define MAX_REQUESTS (1u << 20)
#define MAX_TOKENS (64u << 20)
#define LATE_BINS 20000 /* microseconds */

/* ---- options ---------------------------------------------------------------------------------------------------- */
static int port = 0, coalesce = 1, role_chunk = 1;
static double ttft_ms = 100, itl_ms = 20, sigma = 0;
static uint64_t seed = 1;
static ns_t spin_ns = 60000;
static const char *model = "ground-truth";

/* ---- truth ------------------------------------------------------------------------------------------------------ */
typedef struct {
    ns_t arrival, end;
    uint64_t first_token; /* index into token_ns */
    int tokens, sent, blocked;
    char id[64];
} Request;
static Request *requests;
static ns_t *token_ns;
static unsigned request_count;
static uint64_t tokens_used;
static uint64_t late_count[LATE_BINS + 1], events, blocked;
static unsigned active, peak_active;

/* ---- connections ------------------------------------------------------------------------------------------------ */
typedef struct {
    int fd, closing, heap_at; /* heap_at: -1 when no token is due */
    char *in, *out;
    size_t in_len, in_cap, out_len, out_pos, out_cap;
    /* the request being answered */
    int busy, chat, usage, tokens, sent, prompt_tokens;
    unsigned request;
    ns_t due, received;
    uint64_t rng;
    char before[400], after[160]; /* an event's text around its token */
    int before_len, after_len;
} Conn;
static int epoll_fd;
static volatile sig_atomic_t stopping;

static ns_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

/* Offset of the wall clock, on which the kernel stamps, to the monotonic clock: the tightest of five readings. */
static ns_t wall_offset;
static void sample_offset(void) {
    ns_t best = 1LL << 60;
    for (int i = 0; i < 5; i++) {
        struct timespec wall;
        ns_t before = now_ns();
        clock_gettime(CLOCK_REALTIME, &wall);
        ns_t after = now_ns();
        if (after - before < best) {
            best = after - before;
            wall_offset = wall.tv_sec * SECOND + wall.tv_nsec - (before + after) / 2;
        }
    }
}

/* ---- a heap of connections by due time --------------------------------------------------------------------------- */
static Conn **heap;
static int heap_len, heap_cap;

static void heap_put(int i, Conn *c) { heap[i] = c; c->heap_at = i; }
static void heap_up(int i) {
    Conn *c = heap[i];
    for (int parent; i > 0 && heap[parent = (i - 1) / 2]->due > c->due; i = parent) heap_put(i, heap[parent]);
    heap_put(i, c);
}
static void heap_down(int i) {
    Conn *c = heap[i];
    for (int child; (child = 2 * i + 1) < heap_len; i = child) {
        if (child + 1 < heap_len && heap[child + 1]->due < heap[child]->due) child++;
        if (heap[child]->due >= c->due) break;
        heap_put(i, heap[child]);
    }
    heap_put(i, c);
}
static void heap_push(Conn *c) {
    if (heap_len == heap_cap) heap = realloc(heap, (heap_cap = heap_cap ? 2 * heap_cap : 1024) * sizeof *heap);
    heap_put(heap_len++, c);
    heap_up(heap_len - 1);
}
static void heap_remove(Conn *c) {
    int i = c->heap_at;
    if (i < 0) return;
    c->heap_at = -1;
    if (i == --heap_len) return;
    Conn *moved = heap[heap_len];
    heap_put(i, moved);
    heap_up(i);
    heap_down(moved->heap_at);
}

/* ---- sending ---------------------------------------------------------------------------------------------------- */
static void watch(Conn *c, int writable) {
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | (writable ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
}
static void put(Conn *c, const char *data, size_t n) {
    if (c->out_len == c->out_pos) {
        ssize_t taken = send(c->fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (taken < 0 && errno != EAGAIN) { c->closing = 1; return; }
        if (taken < 0) taken = 0;
        if ((size_t)taken == n) return;
        data += taken;
        n -= taken;
        c->out_len = c->out_pos = 0;
        watch(c, 1);
    }
    blocked++; /* the client's socket is full: this token's send time is not its wire time */
    if (c->busy) requests[c->request].blocked++;
    if (c->out_len + n > c->out_cap) c->out = realloc(c->out, c->out_cap = 2 * (c->out_len + n));
    memcpy(c->out + c->out_len, data, n);
    c->out_len += n;
}
static void flush_out(Conn *c) {
    while (c->out_pos < c->out_len) {
        ssize_t taken = send(c->fd, c->out + c->out_pos, c->out_len - c->out_pos, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (taken < 0) {
            if (errno != EAGAIN) c->closing = 1;
            return;
        }
        c->out_pos += taken;
    }
    c->out_pos = c->out_len = 0;
    watch(c, 0);
}
static void reply(Conn *c, const char *status, const char *type, const char *body, size_t n) {
    char head[256];
    int m = sprintf(head, "HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n", status, type, n);
    put(c, head, m);
    if (n) put(c, body, n);
}
static void close_conn(Conn *c) {
    heap_remove(c);
    if (c->busy) active--;
    close(c->fd);
    free(c->in);
    free(c->out);
    c->in = c->out = NULL;
    c->fd = -1; /* the struct stays: an event of this round may still point at it; runs are bounded */
}

/* ---- answering -------------------------------------------------------------------------------------------------- */
static char text[1 << 20];
static const char *WORDS[16] = {" one",  " two",  " red",   " blue", " green", " day",   " night", " water",
                                " fire", " house", " tree", " book", " light", " dark", " north", " south"};

static double uniform(uint64_t *s) { /* xorshift */
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return ((*s >> 11) + 0.5) / 9007199254740992.0;
}
static double gap_factor(uint64_t *s) { /* lognormal of mean 1 */
    if (sigma <= 0) return 1;
    double a = uniform(s), b = uniform(s);
    return exp(sigma * sqrt(-2 * log(a)) * cos(2 * M_PI * b) - sigma * sigma / 2);
}
static int chunk(char *to, const char *body, int n) {
    int m = sprintf(to, "%x\r\n", n);
    memcpy(to + m, body, n);
    memcpy(to + m + n, "\r\n", 2);
    return m + n + 2;
}
static int token_event(Conn *c, char *to, int k) { /* the first five words spell the request, so answers differ */
    char body[1200];
    const char *word = k < 5 ? WORDS[(c->request >> (4 * k)) & 15] : " the";
    int n = sprintf(body, "%.*s%s", c->before_len, c->before, word);
    if (k == c->tokens - 1)
        n += sprintf(body + n, "%s,\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n", c->chat ? "\"}" : "\"");
    else
        n += sprintf(body + n, "%.*s", c->after_len, c->after);
    return chunk(to, body, n);
}
static void finish(Conn *c) {
    char body[700];
    int n = 0, m;
    if (c->usage) {
        m = sprintf(body,
                    "data: {\"id\":\"gt-%08x\",\"object\":\"chunk\",\"created\":0,\"model\":\"%s\",\"choices\":[],"
                    "\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":%d}}\n\n",
                    c->request, model, c->prompt_tokens, c->prompt_tokens + c->tokens, c->tokens);
        n += chunk(text + n, body, m);
    }
    n += chunk(text + n, "data: [DONE]\n\n", 14);
    memcpy(text + n, "0\r\n\r\n", 5);
    put(c, text, n + 5);
    requests[c->request].end = now_ns();
    c->busy = 0;
    active--;
    heap_remove(c);
}
static void parse(Conn *c);
static void fire(Conn *c) { /* send what is due; usually one token */
    Request *r = &requests[c->request];
    int n = 0, first = c->sent;
    ns_t t = now_ns();
    if (c->sent == 0 && c->chat && role_chunk) { /* as vLLM does: just before the first token, in a write of its own */
        char body[600];
        int m = sprintf(body,
                        "data: {\"id\":\"gt-%08x\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"%s\","
                        "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                        "\"finish_reason\":null}]}\n\n",
                        c->request, model);
        put(c, text, chunk(text, body, m));
        t = now_ns();
    }
    do {
        ns_t late = (t - c->due) / 1000;
        late_count[late < 0 ? 0 : late > LATE_BINS ? LATE_BINS : late]++;
        n += token_event(c, text + n, c->sent++);
        c->due += (ns_t)(itl_ms * 1e6 * gap_factor(&c->rng));
    } while (c->sent < c->tokens && c->due <= t && c->sent - first < coalesce);
    t = now_ns();
    for (int k = first; k < c->sent; k++) token_ns[r->first_token + k] = t;
    r->sent = c->sent;
    events += c->sent - first;
    put(c, text, n);
    if (c->sent < c->tokens) {
        heap_down(c->heap_at);
        return;
    }
    finish(c);
    if (c->in_len) parse(c);
}

/* ---- requests --------------------------------------------------------------------------------------------------- */
static double number(const char *body, const char *key, double otherwise) { /* a JSON number or boolean, by its key */
    char quoted[64];
    int n = sprintf(quoted, "\"%s\"", key);
    for (const char *p = body; (p = strstr(p, quoted));) {
        p += n;
        p += strspn(p, " \t");
        if (*p++ != ':') continue;
        p += strspn(p, " \t");
        if (!strncmp(p, "true", 4)) return 1;
        if (!strncmp(p, "false", 5)) return 0;
        return strchr("-.0123456789", *p) ? atof(p) : otherwise;
    }
    return otherwise;
}
static void start(Conn *c, int chat, char *body, size_t n, const char *id, ns_t arrival) {
    char saved = body[n];
    body[n] = 0;
    int tokens = (int)number(body, "max_tokens", number(body, "max_completion_tokens", 16));
    int stream = number(body, "stream", 0) != 0, usage = number(body, "include_usage", 0) != 0;
    body[n] = saved;
    if (tokens < 1) tokens = 1;
    if (!stream) { reply(c, "400 Bad Request", "application/json", "{\"error\":\"streams only\"}", 24); return; }
    if (request_count >= MAX_REQUESTS || tokens_used + tokens > MAX_TOKENS) {
        reply(c, "503 Service Unavailable", "text/plain", "full", 4);
        return;
    }
    unsigned index = request_count++;
    Request *r = &requests[index];
    memset(r, 0, sizeof *r);
    r->arrival = arrival;
    r->first_token = tokens_used;
    r->tokens = tokens;
    tokens_used += tokens;
    snprintf(r->id, sizeof r->id, "%s", id);
    c->request = index;
    c->tokens = tokens;
    c->sent = 0;
    c->chat = chat;
    c->usage = usage;
    c->prompt_tokens = n / 4 + 1;
    c->busy = 1;
    if (++active > peak_active) peak_active = active;
    c->rng = seed * 0x9E3779B97F4A7C15ULL ^ (index + 1) * 0xBF58476D1CE4E5B9ULL;
    c->before_len = sprintf(c->before,
                            "data: {\"id\":\"gt-%08x\",\"object\":\"%s\",\"created\":1764500000,\"model\":\"%s\","
                            "\"choices\":[{\"index\":0,%s",
                            index, chat ? "chat.completion.chunk" : "text_completion", model,
                            chat ? "\"delta\":{\"content\":\"" : "\"text\":\"");
    c->after_len = sprintf(c->after,
                           "%s,\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null,\"token_ids\":null}]}\n\n",
                           chat ? "\"}" : "\"");
    c->due = arrival + (ns_t)(ttft_ms * 1e6);
    static const char head[] = "HTTP/1.1 200 OK\r\nserver: ground-truth\r\ncontent-type: text/event-stream\r\n"
                               "transfer-encoding: chunked\r\n\r\n";
    put(c, head, sizeof head - 1);
    heap_push(c);
}
static int stats(char *to) {
    uint64_t all = 0, seen = 0;
    int p50 = 0, p95 = 0, p99 = 0;
    for (int i = 0; i <= LATE_BINS; i++) all += late_count[i];
    for (int i = 0; i <= LATE_BINS; i++) {
        seen += late_count[i];
        if (seen * 2 < all) p50 = i + 1;
        if (seen * 20 < all * 19) p95 = i + 1;
        if (seen * 100 < all * 99) p99 = i + 1;
    }
    return sprintf(to,
                   "{\"requests\":%u,\"peak_active\":%u,\"events\":%lu,\"blocked\":%lu,\"late_us_p50\":%d,"
                   "\"late_us_p95\":%d,\"late_us_p99\":%d}\n",
                   request_count, peak_active, events, blocked, p50, p95, p99);
}
static void send_truth(Conn *c) {
    char *body = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&body, &n);
    fprintf(f, "id,arrival_ns,end_ns,tokens,blocked,token_ns\n");
    for (unsigned i = 0; i < request_count; i++) {
        Request *r = &requests[i];
        fprintf(f, "%s,%ld,%ld,%d,%d,", r->id, r->arrival, r->end, r->tokens, r->blocked);
        for (int k = 0; k < r->sent; k++) fprintf(f, k ? ";%ld" : "%ld", token_ns[r->first_token + k]);
        fputc('\n', f);
    }
    fclose(f);
    reply(c, "200 OK", "text/csv", body, n);
    free(body);
}
static void reset(void) {
    request_count = peak_active = 0;
    tokens_used = events = blocked = 0;
    memset(late_count, 0, sizeof late_count);
}
static void route(Conn *c, char *head, char *body, size_t n, const char *id) {
    ns_t arrival = now_ns();
    if (c->received && c->received <= arrival && arrival - c->received < SECOND) arrival = c->received;
    int post = !strncmp(head, "POST ", 5);
    const char *path = head + (post ? 5 : 4);
    char answer[600];
    if (post && !strncmp(path, "/v1/completions ", 16)) start(c, 0, body, n, id, arrival);
    else if (post && !strncmp(path, "/v1/chat/completions ", 21)) start(c, 1, body, n, id, arrival);
    else if (post && !strncmp(path, "/reset ", 7)) { reset(); reply(c, "200 OK", "text/plain", "", 0); }
    else if (!strncmp(path, "/health", 7)) reply(c, "200 OK", "application/json", "{}", 2);
    else if (!strncmp(path, "/stats", 6)) reply(c, "200 OK", "application/json", answer, stats(answer));
    else if (!strncmp(path, "/truth.csv", 10)) send_truth(c);
    else if (!strncmp(path, "/v1/models", 10))
        reply(c, "200 OK", "application/json", answer,
              sprintf(answer, "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\"}]}", model));
    else reply(c, "404 Not Found", "application/json", "{\"error\":\"not found\"}", 21);
}
static void parse(Conn *c) { /* whole requests with a content-length; a second one waits until the first is answered */
    while (!c->busy && !c->closing && c->in_len) {
        char *end = memmem(c->in, c->in_len, "\r\n\r\n", 4), id[64] = "";
        if (!end) return;
        size_t head = end - c->in + 4, length = 0;
        for (char *line = c->in, *eol; line < end; line = eol + 2) {
            eol = memmem(line, end + 2 - line, "\r\n", 2);
            if (!strncasecmp(line, "content-length:", 15)) length = atol(line + 15);
            if (!strncasecmp(line, "x-request-id:", 13)) {
                char *value = line + 13 + strspn(line + 13, " ");
                snprintf(id, sizeof id, "%.*s", (int)(eol - value), value);
            }
        }
        if (c->in_len < head + length) return;
        route(c, c->in, c->in + head, length, id);
        memmove(c->in, c->in + head + length, c->in_len -= head + length);
    }
}
static void receive(Conn *c) {
    for (;;) {
        if (c->in_cap - c->in_len < 65536) c->in = realloc(c->in, (c->in_cap = 2 * c->in_cap + 131072) + 1);
        char control[128];
        struct iovec into = {c->in + c->in_len, c->in_cap - c->in_len};
        struct msghdr m = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        ssize_t n = recvmsg(c->fd, &m, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) { c->closing = 1; return; }
        c->received = 0;
        for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
            if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SO_TIMESTAMPNS) {
                struct timespec t;
                memcpy(&t, CMSG_DATA(h), sizeof t);
                c->received = t.tv_sec * SECOND + t.tv_nsec - wall_offset;
            }
        c->in_len += n;
        if (n < 65536) break;
    }
    parse(c);
}

/* ---- the loop --------------------------------------------------------------------------------------------------- */
static void on_signal(int number) { (void)number; stopping = 1; }

static void options(int argc, char **argv) {
    static struct option names[] = {{"port", 1, 0, 'p'},  {"ttft-ms", 1, 0, 't'},    {"itl-ms", 1, 0, 'i'},
                                    {"sigma", 1, 0, 's'}, {"seed", 1, 0, 'e'},       {"coalesce", 1, 0, 'c'},
                                    {"role", 1, 0, 'r'},  {"spin-us", 1, 0, 'w'},    {"model", 1, 0, 'm'},
                                    {0, 0, 0, 0}};
    for (int o; (o = getopt_long(argc, argv, "", names, 0)) != -1;) switch (o) {
        case 'p': port = atoi(optarg); break;
        case 't': ttft_ms = atof(optarg); break;
        case 'i': itl_ms = atof(optarg); break;
        case 's': sigma = atof(optarg); break;
        case 'e': seed = strtoull(optarg, 0, 10); break;
        case 'c': coalesce = atoi(optarg) > 256 ? 256 : atoi(optarg); break;
        case 'r': role_chunk = atoi(optarg); break;
        case 'w': spin_ns = (ns_t)(atof(optarg) * 1000); break;
        case 'm': model = optarg; break;
        default: exit(2);
    }
}
static int listen_on(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&a, sizeof a) || listen(fd, 4096) || getsockname(fd, (void *)&a, &n)) {
        perror("bind");
        exit(1);
    }
    printf("%d\n", ntohs(a.sin_port)); /* --port 0 takes a free one: the parent reads it here */
    fflush(stdout);
    return fd;
}
static void accept_some(int fd) {
    for (int i = 0, one = 1; i < 16; i++) {
        int taken = accept4(fd, 0, 0, SOCK_NONBLOCK);
        if (taken < 0) return;
        setsockopt(taken, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(taken, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
        Conn *c = calloc(1, sizeof *c);
        c->fd = taken;
        c->heap_at = -1;
        struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, taken, &e);
    }
}
int main(int argc, char **argv) {
    options(argc, argv);
    token_ns = mmap(0, sizeof *token_ns * (size_t)MAX_TOKENS, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    requests = mmap(0, sizeof *requests * (size_t)MAX_REQUESTS, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (token_ns == MAP_FAILED || requests == MAP_FAILED) { perror("mmap"); return 1; }
    memset(token_ns, 0, 8u << 20); /* touched now: a page fault later would delay a token */
    memset(requests, 0, 2u << 20);
    prctl(PR_SET_TIMERSLACK, 1UL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    struct sigaction stop = {.sa_handler = on_signal};
    sigaction(SIGTERM, &stop, 0);
    sigaction(SIGINT, &stop, 0);
    sample_offset();
    epoll_fd = epoll_create1(0);
    int listener = listen_on();
    struct epoll_event listening = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &listening);
    static struct epoll_event ready[256];
    ns_t sampled = 0;
    while (!stopping) {
        ns_t t = now_ns();
        if (t - sampled > SECOND / 2) { sample_offset(); sampled = t; }
        for (int fired = 0; heap_len && heap[0]->due <= t && fired < 8; fired++, t = now_ns()) {
            Conn *c = heap[0];
            fire(c);
            if (c->closing) close_conn(c);
        }
        ns_t wait = SECOND;
        if (heap_len) wait = heap[0]->due - t > spin_ns ? heap[0]->due - t - spin_ns : 0;
        struct timespec timeout = {wait / SECOND, wait % SECOND};
        int n = epoll_pwait2(epoll_fd, ready, 256, &timeout, 0);
        for (int i = 0; i < n; i++) {
            Conn *c = ready[i].data.ptr;
            if (!c) { accept_some(listener); continue; }
            if (c->fd < 0) continue;
            if (ready[i].events & EPOLLOUT) flush_out(c);
            if (ready[i].events & ~EPOLLOUT) receive(c);
            if (c->closing) close_conn(c);
        }
    }
    return 0;
}
