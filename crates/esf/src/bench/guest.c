/* What `esf bench wasi` measures: the same source is built natively and for WASI, and each tells its own
 * clock's time on stdout in nanoseconds. `hello` does nothing; `open FILE N` opens, reads and closes a
 * file N times; `stat FILE N` asks for its status; `walk DIR` lists a tree and takes the status of every
 * entry, and tells how many there were. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void open_read_close(const char *path, long times) {
    char buffer[4096];
    for (long i = 0; i < times; i++) {
        int file = open(path, O_RDONLY);
        if (file < 0 || read(file, buffer, sizeof buffer) < 0) fail(path);
        close(file);
    }
}

static void status(const char *path, long times) {
    struct stat found;
    for (long i = 0; i < times; i++)
        if (stat(path, &found) != 0) fail(path);
}

/* Beneath `at`, which it closes. */
static long walk(int at) {
    DIR *directory = fdopendir(at);
    if (!directory) fail("fdopendir");
    long seen = 0;
    struct dirent *entry;
    while ((entry = readdir(directory))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        struct stat found;
        if (fstatat(at, entry->d_name, &found, AT_SYMLINK_NOFOLLOW) != 0) fail(entry->d_name);
        seen++;
        if (!S_ISDIR(found.st_mode)) continue;
        int child = openat(at, entry->d_name, O_RDONLY | O_DIRECTORY);
        if (child < 0) fail(entry->d_name);
        seen += walk(child);
    }
    closedir(directory);
    return seen;
}

int main(int argc, char **argv) {
    if (argc < 3) return 0;
    long times = argc > 3 ? atol(argv[3]) : 1;
    long long begun = now();
    if (!strcmp(argv[1], "open")) open_read_close(argv[2], times);
    else if (!strcmp(argv[1], "stat")) status(argv[2], times);
    else {
        int top = open(argv[2], O_RDONLY | O_DIRECTORY);
        if (top < 0) fail(argv[2]);
        times = walk(top);
    }
    printf("%lld %ld\n", now() - begun, times);
    return 0;
}
