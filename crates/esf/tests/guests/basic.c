/* basic WHAT ...: the small programs of the executor's tests: output, exit codes, input, time.
   One program, so that it is compiled and cached once. Runs natively too. */
#define _GNU_SOURCE
#include <time.h>
#include <unistd.h>

#include "text.h"

extern char **environ;

static int cat(void) {
    static char bytes[1 << 16];
    ssize_t count;
    while ((count = read(0, bytes, sizeof bytes)) > 0)
        if (fwrite(bytes, 1, (size_t)count, stdout) != (size_t)count) return 1;
    return count < 0;
}

static int words(int count, char **list) {
    for (int i = 0; i < count; i++) printf("word %s\n", list[i]);
    for (char **pair = environ; *pair; pair++) printf("variable %s\n", *pair);
    return 0;
}

/* Numbered lines until there are at least that many bytes. */
static int lines(long long bytes, int code) {
    long long sent = 0;
    for (long long line = 1; sent < bytes; line++) sent += printf("line %lld\n", line);
    return code;
}

/* All values of a byte in order, over and over; `piece` bytes at a time. */
static int all_bytes(long long count, size_t piece) {
    unsigned char bytes[4096];
    for (long long sent = 0; sent < count;) {
        size_t part = piece < sizeof bytes ? piece : sizeof bytes;
        if ((long long)part > count - sent) part = (size_t)(count - sent);
        for (size_t i = 0; i < part; i++) bytes[i] = (unsigned char)(sent + (long long)i);
        fwrite(bytes, 1, part, stdout);
        fflush(stdout);
        sent += (long long)part;
    }
    return 0;
}

/* One character of several bytes, each byte by a write of its own. */
static int split(void) {
    for (const char *byte = "\xe2\x82\xac\xf0\x9f\x8e\x88\n"; *byte; byte++)
        if (write(1, byte, 1) != 1) return 1;
    return 0;
}

static int three(void) {
    puts("one\ntwo\nthree");
    fflush(stdout);
    sleep(600);
    return 0;
}

static int nap(double seconds) {
    struct timespec before, after;
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    clock_gettime(CLOCK_MONOTONIC, &before);
    nanosleep(&time, NULL);
    clock_gettime(CLOCK_MONOTONIC, &after);
    double slept = (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) / 1e9;
    return slept + 0.001 < seconds;
}

static int both(void) {
    fputs("to standard output\n", stdout);
    fputs("to standard error\n", stderr);
    return 0;
}

static int now(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    printf("%lld\n", (long long)time.tv_sec);
    return 0;
}

/* A heap of that many bytes, all written; then calls of the host, which keep theirs elsewhere. */
static int heap(size_t size) {
    char *bytes = malloc(size);
    if (!bytes) return 1;
    memset(bytes, 7, size);
    for (int i = 0; i < 3; i++) {
        printf("call %d\n", i);
        fflush(stdout);
    }
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != 7) return printf("byte %zu was overwritten\n", i), 1;
    FILE *file = fopen("heap", "w");
    return !file || fwrite(bytes, 1, size, file) != size || fclose(file) != 0;
}

int main(int count, char **list) {
    const char *what = count > 1 ? list[1] : "hello", *first = count > 2 ? list[2] : "0";
    const char *second = count > 3 ? list[3] : "0";
    if (!strcmp(what, "hello")) return puts("hello") < 0;
    if (!strcmp(what, "exit")) return atoi(first);
    if (!strcmp(what, "cat")) return cat();
    if (!strcmp(what, "words")) return words(count, list);
    if (!strcmp(what, "lines")) return lines(atoll(first), atoi(second));
    if (!strcmp(what, "bytes")) return all_bytes(atoll(first), (size_t)atoll(second));
    if (!strcmp(what, "split")) return split();
    if (!strcmp(what, "three")) return three();
    if (!strcmp(what, "sleep")) return nap(atof(first));
    if (!strcmp(what, "both")) return both();
    if (!strcmp(what, "heap")) return heap((size_t)atoll(first));
    if (!strcmp(what, "now")) return now();
    fprintf(stderr, "unknown: %s\n", what);
    return 2;
}
