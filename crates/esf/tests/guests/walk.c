/* walk [DIRECTORY]: one line for each entry beneath, in the words of `esf dump`: path, kind, mode in octal,
   size, content, mtime; `-` stands for nothing. The same source runs natively and as WebAssembly, where modes
   do not exist and a fifo cannot be told from other specials ("other").
   Invariant: entries are reached through handles of directories and no link is followed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "blake3.h"
#include "text.h"

/* A path longer than this below the last handle gets a handle of its own: depth costs few descriptors. */
enum { SPAN = 1500, CONTENT = 128 };

static void print_content(int at, const char *path) {
    static uint8_t bytes[1 << 16];
    static struct blake3 hash;
    int file = openat(at, path, O_RDONLY | O_NOFOLLOW);
    if (file < 0) die("open", path);
    blake3_start(&hash);
    ssize_t length;
    while ((length = read(file, bytes, sizeof bytes)) > 0) blake3_add(&hash, bytes, (size_t)length);
    if (length < 0) die("read", path);
    close(file);
    uint32_t words[8];
    blake3_end(&hash, words);
    printf("b3:");
    for (int i = 0; i < 32; i++) printf("%02x", (words[i / 4] >> (8 * (i % 4))) & 0xff);
}

static void print_target(int at, const char *path) {
    static char target[1 << 16];
    ssize_t length = readlinkat(at, path, target, sizeof target);
    if (length < 0) die("readlink", path);
    if (length == 1 && target[0] == '-')
        printf("\\x2d");
    else
        print_escaped(target, (size_t)length);
}

static const char *kind(mode_t mode) {
    if (S_ISDIR(mode)) return "directory";
    if (S_ISREG(mode)) return "file";
    if (S_ISLNK(mode)) return "symlink";
#ifdef __wasi__
    return "other";
#else
    return S_ISFIFO(mode) ? "fifo" : "other";
#endif
}

static void print_entry(int at, const char *below, const char *whole, const struct stat *stat) {
    putchar('/');
    print_escaped(whole, strlen(whole));
#ifdef __wasi__
    printf(" %s - ", kind(stat->st_mode));
#else
    printf(" %s %04o ", kind(stat->st_mode), (unsigned)stat->st_mode & 07777);
#endif
    if (S_ISREG(stat->st_mode)) {
        printf("%lld ", (long long)stat->st_size);
        print_content(at, below);
    } else if (S_ISLNK(stat->st_mode)) {
        printf("- ");
        print_target(at, below);
    } else {
        printf("- -");
    }
    printf(" %lld.%09ld\n", (long long)stat->st_mtim.tv_sec, (long)stat->st_mtim.tv_nsec);
}

static int by_bytes(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Names of a directory in the order of their bytes; its handle is closed again. */
static char **names(int directory, const char *path) {
    DIR *listing = directory < 0 ? NULL : fdopendir(directory);
    if (!listing) die("list", path);
    char **found = NULL;
    size_t count = 0;
    errno = 0;
    for (struct dirent *entry; (entry = readdir(listing));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (count % 64 == 0) found = realloc(found, (count + 65) * sizeof *found);
        found[count++] = strdup(entry->d_name);
    }
    if (errno) die("list", path);
    closedir(listing);
    if (!found) return calloc(1, sizeof *found);
    qsort(found, count, sizeof *found, by_bytes);
    found[count] = NULL;
    return found;
}

static char *joined(const char *directory, const char *name) {
    size_t length = strlen(directory) + strlen(name) + 2;
    char *path = malloc(length);
    snprintf(path, length, "%s%s%s", directory, *directory ? "/" : "", name);
    return path;
}

/* Everything beneath the directory `below`, which is reached from the handle `at` and is `whole` in the tree. */
static void walk(int at, const char *below, const char *whole) {
    char **list = names(openat(at, *below ? below : ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW), whole);
    int own = at;
    if (strlen(below) > SPAN) {
        own = openat(at, below, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
        if (own < 0) die("open", whole);
        below = "";
    }
    for (char **name = list; *name; name++) {
        char *path = joined(below, *name), *shown = joined(whole, *name);
        struct stat stat;
        if (fstatat(own, path, &stat, AT_SYMLINK_NOFOLLOW) < 0) die("stat", shown);
        print_entry(own, path, shown, &stat);
        if (S_ISDIR(stat.st_mode)) walk(own, path, shown);
        free(path), free(shown), free(*name);
    }
    free(list);
    if (own != at) close(own);
}

int main(int count, char **words) {
    const char *top = count > 1 ? words[1] : ".";
    int at = open(top, O_RDONLY | O_DIRECTORY);
    struct stat stat;
    if (at < 0 || fstat(at, &stat) < 0) die("open", top);
    print_entry(at, "", "", &stat);
    walk(at, "", "");
    return fflush(stdout) || ferror(stdout);
}
