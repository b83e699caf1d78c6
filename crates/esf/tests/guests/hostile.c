/* hostile WHAT [N]: programs that ask for more than there is, never end, or break the rules of the interface.
   Each says what it got, or is stopped. WebAssembly only: they call preview 1 directly. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <wasi/api.h>

#include "text.h"

enum { MIB = 1 << 20, PAGE = 1 << 16 };

static void say(const char *what, unsigned long long number, int error) {
    printf("%s %llu %s\n", what, number, error ? error_name(error) : "ok");
    fflush(stdout);
}

/* Touches memory until there is no more. */
static int grow(void) {
    unsigned long long pages = 0;
    for (size_t old; (old = __builtin_wasm_memory_grow(0, 16)) != (size_t)-1; pages += 16)
        memset((char *)(old * PAGE), 1, 16 * PAGE);
    say("grown to MiB", pages * PAGE / MIB, ENOMEM);
    return 0;
}

static int depth(volatile int level) {
    volatile char frame[256];
    frame[0] = (char)level;
    if (level < 0) return 0;
    return depth(level + 1) + frame[0];
}

static int spin(void) {
    for (volatile unsigned long long turn = 0;; turn++) {}
    return 1;
}

/* One poll over that many clocks, of which one is due at once. */
static int poll_flood(unsigned count) {
    __wasi_subscription_t *asked = calloc(count, sizeof *asked);
    __wasi_event_t *events = calloc(count, sizeof *events);
    __wasi_size_t found = 0;
    if (!asked || !events) return say("no memory for", count, ENOMEM), 0;
    for (unsigned i = 0; i < count; i++) {
        asked[i].userdata = i;
        asked[i].u.tag = __WASI_EVENTTYPE_CLOCK;
        asked[i].u.u.clock.id = __WASI_CLOCKID_MONOTONIC;
        asked[i].u.u.clock.timeout = i == 0 ? 0 : 3600ull * 1000 * 1000 * 1000;
    }
    int error = __wasi_poll_oneoff(asked, events, count, &found);
    say("events", found, error);
    return 0;
}

/* Small polls, one after another, for ever. */
static int poll_storm(void) {
    struct timespec moment = {0, 1};
    for (;;) nanosleep(&moment, NULL);
}

static int random_bytes(size_t count) {
    uint8_t *bytes = malloc(count);
    if (!bytes) return say("no memory for", count, ENOMEM), 0;
    int error = __wasi_random_get(bytes, count);
    say("random", count, error);
    return 0;
}

/* A path of that many bytes, and a file of that name asked for in every way. */
static int long_path(size_t count) {
    char *path = malloc(count + 1);
    if (!path) return say("no memory for", count, ENOMEM), 0;
    memset(path, 'a', count);
    path[count] = 0;
    int opened = open(path, O_RDONLY);
    say("open", count, opened < 0 ? errno : 0);
    say("mkdir", count, mkdir(path, 0755) ? errno : 0);
    say("symlink", count, symlink(path, "long-target") ? errno : 0);
    for (size_t i = 1; i < count; i += 2) path[i] = '/';
    say("deep", count, open(path, O_RDONLY) < 0 ? errno : 0);
    return 0;
}

/* Handles of one directory until one is refused; then all are closed and one works again. */
static int descriptors(unsigned most) {
    unsigned count = 0;
    int first = -1, last = -1, error = 0;
    for (; count < most; count++) {
        last = open(".", O_RDONLY | O_DIRECTORY);
        if (last < 0) {
            error = errno;
            break;
        }
        if (first < 0) first = last;
    }
    say("descriptors", count, error);
    for (int fd = first; fd < first + (int)count; fd++) close(fd);
    last = open(".", O_RDONLY | O_DIRECTORY);
    say("afterwards", 1, last < 0 ? errno : 0);
    return 0;
}

/* Numbers of descriptors that never were, and reuse of what was closed. */
static int renumber(void) {
    int one = open("one", O_RDWR | O_CREAT, 0644), two = open("two", O_RDWR | O_CREAT, 0644);
    for (unsigned to = 1000; to < 1u << 30; to *= 1000) say("to what is not open", to, __wasi_fd_renumber(one, to));
    say("from what is not open", 77777, __wasi_fd_renumber(77777, one));
    say("to the largest", UINT32_MAX, __wasi_fd_renumber(two, UINT32_MAX));
    say("to itself", 0, __wasi_fd_renumber(one, one));
    say("over the other", 0, __wasi_fd_renumber(one, two));
    say("write", 0, write(two, "x", 1) == 1 ? 0 : errno);
    say("close of the first", 0, close(one) ? errno : 0);
    say("over the preopen", 0, __wasi_fd_renumber(two, 3));
    say("close of all", 0, close(3) ? errno : 0);
    for (int fd = 4; fd < 64; fd++) close(fd);
    say("open afterwards", 0, open("one", O_RDONLY) < 0 ? errno : 0);
    return 0;
}

/* Pointers that lie outside the memory, handed to the host. */
static int wild_pointers(void) {
    __wasi_ciovec_t outside = {(const uint8_t *)0xfffffff0u, 0x1000};
    __wasi_size_t written = 0;
    return __wasi_fd_write(1, &outside, 1, &written);
}

static int out_of_bounds(void) { return *(volatile int *)0xfffffffcu; }

static int divide(volatile int what, volatile int by) { return what / by; }

/* Writes to a file until it is refused; says how much was taken. */
static int fill_disk(unsigned long long most) {
    static char bytes[PAGE];
    memset(bytes, 'x', sizeof bytes);
    int file = open("filling", O_WRONLY | O_CREAT | O_TRUNC, 0644), error = 0;
    unsigned long long taken = 0;
    for (ssize_t count; taken < most; taken += (unsigned long long)count) {
        count = write(file, bytes, sizeof bytes);
        if (count <= 0) {
            error = errno;
            break;
        }
    }
    say("filled", taken, error);
    return 0;
}

/* Makes, renames and removes entries while a listing of the directory is under way. */
static int list_while_changing(void) {
    static uint8_t buffer[256];
    char name[32];
    mkdir("changing", 0755);
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "changing/%03d", i);
        close(open(name, O_WRONLY | O_CREAT, 0644));
    }
    int directory = open("changing", O_RDONLY | O_DIRECTORY);
    __wasi_dircookie_t cookie = __WASI_DIRCOOKIE_START;
    int seen = 0, old_seen = 0, rounds = 0;
    for (__wasi_size_t used; rounds < 10000; rounds++) {
        int error = __wasi_fd_readdir(directory, buffer, sizeof buffer, cookie, &used);
        if (error) return say("listing", (unsigned)seen, error), 1;
        __wasi_dirent_t entry;
        size_t at = 0;
        for (; at + sizeof entry <= used; at += sizeof entry + entry.d_namlen) {
            memcpy(&entry, buffer + at, sizeof entry);
            if (at + sizeof entry + entry.d_namlen > used) break;
            cookie = entry.d_next;
            seen++;
            old_seen += entry.d_namlen == 3;
        }
        if (used < sizeof buffer) break;
        snprintf(name, sizeof name, "changing/new%d", rounds);
        close(open(name, O_WRONLY | O_CREAT, 0644));
        snprintf(name, sizeof name, "changing/%03d", 199 - rounds % 100);
        unlink(name);
    }
    printf("ended after %s rounds, saw %s\n", rounds < 10000 ? "some" : "too many",
           old_seen >= 100 && old_seen <= 200 ? "each that stayed" : "something else");
    return 0;
}

int main(int count, char **list) {
    const char *what = count > 1 ? list[1] : "";
    unsigned long long number = count > 2 ? strtoull(list[2], NULL, 10) : 0;
    if (!strcmp(what, "spin")) return spin();
    if (!strcmp(what, "grow")) return grow();
    if (!strcmp(what, "recurse")) return depth(0);
    if (!strcmp(what, "poll")) return poll_flood((unsigned)number);
    if (!strcmp(what, "storm")) return poll_storm();
    if (!strcmp(what, "random")) return random_bytes((size_t)number);
    if (!strcmp(what, "path")) return long_path((size_t)number);
    if (!strcmp(what, "descriptors")) return descriptors((unsigned)number);
    if (!strcmp(what, "renumber")) return renumber();
    if (!strcmp(what, "pointers")) return wild_pointers();
    if (!strcmp(what, "outside")) return out_of_bounds();
    if (!strcmp(what, "divide")) return divide(what[0], count - 2);
    if (!strcmp(what, "trap")) __builtin_trap();
    if (!strcmp(what, "fill")) return fill_disk(number);
    if (!strcmp(what, "changing")) return list_while_changing();
    fprintf(stderr, "unknown: %s\n", what);
    return 2;
}
