/* fsop SCRIPT [TOP]: filesystem operations, one a line, each answered by its line and "ok", what was asked
   for, or the name of the error. The same source runs natively and as WebAssembly, so that one script can be
   run on two executors and the answers compared. An operation that fails does not end the script.
   Words are separated by spaces; \xhh stands for any byte. A slot is a number below 16.
   Paths are resolved at the handle that `at` set (the second of two paths: `to`), TOP at first.
   Invariant: nothing is printed that two right filesystems may answer differently (inode numbers, sizes of
   directories, order of names, times of the clock). */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __wasi__
#include <wasi/api.h>
#include <wasi/libc-find-relpath.h>
#endif

#include "text.h"

enum { WORDS = 8, SLOTS = 16, MOST = 1 << 20 };

static int slots[SLOTS], top, at, to;

/* The words of the line under way; their number, and the length of each, for names that hold a NUL. */
static char *word[WORDS];
static size_t length[WORDS];

static const char *kind(mode_t mode) {
    return S_ISDIR(mode) ? "directory" : S_ISREG(mode) ? "file" : S_ISLNK(mode) ? "symlink" : "other";
}

static int handle(const char *text) {
    if (!strcmp(text, "top")) return top;
    long slot = strtol(text, NULL, 10);
    return slot >= 0 && slot < SLOTS ? slots[slot] : -1;
}

static int keep(const char *text, int opened) {
    if (opened < 0) return -1;
    int *slot = &slots[strtol(text, NULL, 10) % SLOTS];
    if (*slot >= 0) close(*slot);
    *slot = opened;
    return 0;
}

/* As openat. On WASI the rights are asked for in so many words: its libc would take them from the handle. */
static int open_at(int directory, const char *path, int how) {
#ifdef __wasi__
    __wasi_rights_t reads = __WASI_RIGHTS_FD_READ | __WASI_RIGHTS_FD_READDIR;
    __wasi_rights_t writes = __WASI_RIGHTS_FD_WRITE | __WASI_RIGHTS_FD_ALLOCATE | __WASI_RIGHTS_FD_FILESTAT_SET_SIZE;
    __wasi_rights_t rights = 0x1fffffff & ~reads & ~writes;
    rights |= (how & O_RDONLY ? reads : 0) | (how & O_WRONLY ? writes : 0);
    __wasi_fd_t opened;
    errno = __wasi_path_open(directory, how & O_NOFOLLOW ? 0 : __WASI_LOOKUPFLAGS_SYMLINK_FOLLOW, path,
                             (how >> 12) & 0xfff, rights, 0x1fffffff, how & 0xfff, &opened);
    return errno ? -1 : (int)opened;
#else
    return openat(directory, path, how, 0644);
#endif
}

/* The handle of a directory that was given to the program: on WASI, of a preopen itself. */
static int given(const char *path) {
#ifdef __wasi__
    const char *prefix;
    char *below = malloc(strlen(path) + 1);
    return __wasilibc_find_relpath(path, &prefix, &below, strlen(path) + 1);
#else
    return open(path, O_RDONLY | O_DIRECTORY);
#endif
}

static int flags(const char *letters) {
    int read = strchr(letters, 'r') != NULL, write = strchr(letters, 'w') != NULL;
    int made = read && write ? O_RDWR : write ? O_WRONLY : O_RDONLY;
    static const struct { char letter; int flag; } known[] = {
        {'c', O_CREAT}, {'x', O_EXCL}, {'t', O_TRUNC}, {'a', O_APPEND}, {'d', O_DIRECTORY}, {'n', O_NOFOLLOW}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strchr(letters, known[i].letter)) made |= known[i].flag;
    return made;
}

/* SECONDS.NANOS, `now` or `keep`. */
static struct timespec moment(const char *text) {
    struct timespec time = {0};
    if (!strcmp(text, "now")) {
        time.tv_nsec = UTIME_NOW;
    } else if (!strcmp(text, "keep")) {
        time.tv_nsec = UTIME_OMIT;
    } else {
        char *dot;
        time.tv_sec = strtoll(text, &dot, 10);
        time.tv_nsec = *dot == '.' ? strtol(dot + 1, NULL, 10) : 0;
    }
    return time;
}

static int answer_bytes(const char *bytes, ssize_t count) {
    if (count < 0) return -1;
    printf("%zd ", count);
    print_escaped(bytes, (size_t)count);
    putchar(' ');
    return 0;
}

static int answer_stat(int failed, const struct stat *stat) {
    if (failed) return -1;
    printf("%s ", kind(stat->st_mode));
    if (!S_ISDIR(stat->st_mode)) printf("%lld ", (long long)stat->st_size);
    return 0;
}

static int answer_times(int failed, const struct stat *stat) {
    if (failed) return -1;
    printf("%lld.%09ld ", (long long)stat->st_mtim.tv_sec, (long)stat->st_mtim.tv_nsec);
    return 0;
}

static int by_bytes(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Names and kinds in the order of their bytes. `directory` is used up. */
static int answer_list(int directory) {
    DIR *listing = directory < 0 ? NULL : fdopendir(directory);
    if (!listing) {
        int error = errno;
        if (directory >= 0) close(directory);
        errno = error;
        return -1;
    }
    char **names = NULL;
    size_t count = 0;
    errno = 0;
    for (struct dirent *entry; (entry = readdir(listing));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (count % 64 == 0) names = realloc(names, (count + 64) * sizeof *names);
        names[count++] = strdup(entry->d_name);
    }
    int error = errno;
    if (count) qsort(names, count, sizeof *names, by_bytes);
    for (size_t i = 0; i < count; i++) {
        struct stat stat;
        int failed = fstatat(dirfd(listing), names[i], &stat, AT_SYMLINK_NOFOLLOW);
        print_escaped(names[i], strlen(names[i]));
        printf(":%s ", failed ? error_name(errno) : kind(stat.st_mode));
        free(names[i]);
    }
    free(names);
    closedir(listing);
    errno = error;
    return error ? -1 : 0;
}

/* Writes all of it: a short write is no error by itself. */
static int write_all(int file, const char *bytes, size_t count) {
    while (count > 0) {
        ssize_t written = write(file, bytes, count);
        if (written < 0) return -1;
        bytes += written, count -= (size_t)written;
    }
    return 0;
}

static int put(int how) {
    int file = open_at(at, word[1], O_WRONLY | O_CREAT | how);
    if (file < 0) return -1;
    int failed = write_all(file, word[2], length[2]), error = errno;
    close(file);
    errno = error;
    return failed;
}

static int cat(void) {
    static char bytes[MOST];
    int file = open_at(at, word[1], O_RDONLY);
    struct stat stat;
    if (file < 0) return -1;
    if (!fstat(file, &stat) && S_ISDIR(stat.st_mode)) return close(file), errno = EISDIR, -1;
    ssize_t count = read(file, bytes, sizeof bytes);
    int error = errno;
    close(file);
    errno = error;
    return answer_bytes(bytes, count);
}

/* fill PATH SIZE: a new file of that many bytes, a pattern that differs from page to page. */
static int fill(void) {
    static char page[4096];
    int file = open_at(at, word[1], O_WRONLY | O_CREAT | O_TRUNC);
    long long left = strtoll(word[2], NULL, 10);
    int failed = file < 0;
    for (unsigned number = 0; !failed && left > 0; number++) {
        size_t count = left < (long long)sizeof page ? (size_t)left : sizeof page;
        memset(page, (int)(number * 37 + 11), sizeof page);
        failed = write_all(file, page, count);
        left -= (long long)count;
    }
    int error = errno;
    if (file >= 0) close(file);
    errno = error;
    return failed ? -1 : 0;
}

static int on_paths(const char *name) {
    static char bytes[MOST];
    struct stat stat;
    struct timespec times[2];
#define IS(text) (!strcmp(name, text))
    if (IS("write")) return put(O_TRUNC);
    if (IS("append")) return put(O_APPEND);
    if (IS("new")) return put(O_EXCL);
    if (IS("cat")) return cat();
    if (IS("fill")) return fill();
    if (IS("mkdir")) return mkdirat(at, word[1], 0755);
    if (IS("rmdir")) return unlinkat(at, word[1], AT_REMOVEDIR);
    if (IS("unlink")) return unlinkat(at, word[1], 0);
    if (IS("rename")) return renameat(at, word[1], to, word[2]);
    if (IS("link")) return linkat(at, word[1], to, word[2], 0);
    if (IS("symlink")) return symlinkat(word[1], at, word[2]);
    if (IS("readlink")) return answer_bytes(bytes, readlinkat(at, word[1], bytes, sizeof bytes));
    if (IS("stat")) return answer_stat(fstatat(at, word[1], &stat, 0), &stat);
    if (IS("lstat")) return answer_stat(fstatat(at, word[1], &stat, AT_SYMLINK_NOFOLLOW), &stat);
    if (IS("mtime")) return answer_times(fstatat(at, word[1], &stat, AT_SYMLINK_NOFOLLOW), &stat);
    if (IS("list")) return answer_list(open_at(at, word[1], O_RDONLY | O_DIRECTORY));
    if (IS("truncate")) {
        int file = open_at(at, word[1], O_WRONLY), failed = file < 0 || ftruncate(file, strtoll(word[2], NULL, 10));
        int error = errno;
        if (file >= 0) close(file);
        errno = error;
        return failed ? -1 : 0;
    }
    times[0] = moment(word[2]), times[1] = moment(word[3]);
    if (IS("times")) return utimensat(at, word[1], times, 0);
    if (IS("ltimes")) return utimensat(at, word[1], times, AT_SYMLINK_NOFOLLOW);
    return 1;
}

static int on_slots(const char *name) {
    static char bytes[MOST];
    struct stat stat;
    struct timespec times[2];
    size_t count = strtoul(word[2], NULL, 10) % MOST;
    off_t offset = strtoll(word[3], NULL, 10);
    int file = handle(word[1]);
    if (IS("at")) return (at = file) < 0 ? (errno = EBADF, -1) : 0;
    if (IS("to")) return (to = file) < 0 ? (errno = EBADF, -1) : 0;
    if (IS("open")) return keep(word[1], open_at(at, word[3], flags(word[2])));
    if (IS("preopen")) return keep(word[1], given(word[2]));
    if (IS("close")) return close(file) ? -1 : (slots[strtol(word[1], NULL, 10) % SLOTS] = -1, 0);
    if (IS("read")) return answer_bytes(bytes, read(file, bytes, count));
    if (IS("put")) return write_all(file, word[2], length[2]);
    if (IS("pread")) return answer_bytes(bytes, pread(file, bytes, count, offset));
    if (IS("pwrite")) return pwrite(file, word[2], length[2], offset) < 0 ? -1 : 0;
    if (IS("seek")) {
        int whence = !strcmp(word[3], "end") ? SEEK_END : !strcmp(word[3], "cur") ? SEEK_CUR : SEEK_SET;
        off_t where = lseek(file, strtoll(word[2], NULL, 10), whence);
        return where < 0 ? -1 : (printf("%lld ", (long long)where), 0);
    }
    if (IS("size")) return ftruncate(file, strtoll(word[2], NULL, 10));
    if (IS("fstat")) return answer_stat(fstat(file, &stat), &stat);
    if (IS("fmtime")) return answer_times(fstat(file, &stat), &stat);
    if (IS("sync")) return fsync(file);
    if (IS("datasync")) return fdatasync(file);
    if (IS("flist")) return answer_list(open_at(file, ".", O_RDONLY | O_DIRECTORY));
    times[0] = moment(word[2]), times[1] = moment(word[3]);
    if (IS("ftimes")) return futimens(file, times);
    return 1;
}

static void run(char *line) {
    int count = 0;
    printf("%s: ", line);
    for (char *part = strtok(line, " "); part && count < WORDS; part = strtok(NULL, " ")) word[count++] = part;
    for (int i = 0; i < WORDS; i++) {
        static char empty[4];
        if (i >= count) word[i] = empty;
        if (!strcmp(word[i], "''")) word[i][0] = 0;
        length[i] = i < count ? unescape(word[i]) : 0;
    }
    errno = 0;
    int outcome = on_paths(word[0]);
    if (outcome > 0) outcome = on_slots(word[0]);
    if (outcome > 0) die("unknown operation", word[0]);
    puts(outcome == 0 ? "ok" : error_name(errno));
}

int main(int count, char **words) {
    if (count < 2) return fputs("usage: fsop SCRIPT [TOP]\n", stderr), 2;
    const char *name = count > 2 ? words[2] : ".";
    for (int i = 0; i < SLOTS; i++) slots[i] = -1;
    at = to = top = given(name);
    if (top < 0) die("open", name);
    char *rest = words[1];
    for (char *line = rest; line; line = rest) {
        rest = strchr(line, '\n');
        if (rest) *rest++ = 0;
        while (*line == ' ') line++;
        if (*line && *line != '#') run(line);
    }
    return fflush(stdout) || ferror(stdout);
}
