/* What the preview 1 programs share: one case is one function; `PROGRAM CASE` runs it in the first preopen,
   `PROGRAM` alone names them all. A case ends silently, or says which line expected what and found what.
   Where the interface leaves a choice of errors, the case lists those it lets pass. */
#ifndef CHECK_H
#define CHECK_H

#include <stdbool.h>
#include <wasi/api.h>

#include "../text.h"

enum { TOP = 3 };
#define E(name) __WASI_ERRNO_##name
#define FOLLOW __WASI_LOOKUPFLAGS_SYMLINK_FOLLOW
#define O(name) __WASI_OFLAGS_##name
#define ALL_RIGHTS 0x1fffffffull
#define READS (ALL_RIGHTS & ~(__WASI_RIGHTS_FD_WRITE | __WASI_RIGHTS_FD_ALLOCATE | __WASI_RIGHTS_FD_FILESTAT_SET_SIZE))

static int failures;

static inline void holds(bool good, int line, const char *what) {
    if (good) return;
    failures++;
    printf("line %d: does not hold: %s\n", line, what);
}

/* `found` must be one of the errors that are listed, up to three; none listed means success. */
static inline void one_of(int found, int line, const char *what, int first, int second, int third) {
    if (found == first || found == second || found == third) return;
    failures++;
    printf("line %d: %s: expected %s, found %s\n", line, what, error_name(first), error_name(found));
}

#define HOLDS(what) holds(what, __LINE__, #what)
#define OK(call) one_of(call, __LINE__, #call, 0, 0, 0)
#define IS(call, error) one_of(call, __LINE__, #call, E(error), E(error), E(error))
#define IS2(call, one, two) one_of(call, __LINE__, #call, E(one), E(two), E(two))
#define IS3(call, one, two, three) one_of(call, __LINE__, #call, E(one), E(two), E(three))
/* Any refusal whatsoever. */
#define REFUSED(call) HOLDS((call) != 0)

struct test {
    const char *name;
    void (*run)(void);
};

static inline int run_tests(const struct test *tests, size_t number, int count, char **words) {
    for (size_t i = 0; i < number; i++) {
        if (count < 2) puts(tests[i].name);
        if (count < 2 || strcmp(words[1], tests[i].name)) continue;
        tests[i].run();
        fflush(stdout);
        return failures > 0;
    }
    return count < 2 ? 0 : 2;
}
#define MAIN(tests) \
    int main(int count, char **words) { return run_tests(tests, sizeof tests / sizeof *tests, count, words); }

/* Calls with the arguments that nearly every case gives. */
static inline int open_with(__wasi_fd_t at, const char *path, int how, int create, __wasi_rights_t rights,
                            __wasi_fd_t *fd) {
    return __wasi_path_open(at, how, path, create, rights, ALL_RIGHTS, 0, fd);
}
static inline int open_for(const char *path, int create, __wasi_fd_t *fd) {
    return open_with(TOP, path, 0, create, create & O(DIRECTORY) ? READS : ALL_RIGHTS, fd);
}
static inline int make(const char *path) {
    __wasi_fd_t fd;
    int error = open_for(path, O(CREAT) | O(EXCL), &fd);
    return error ? error : __wasi_fd_close(fd);
}
static inline int make_directory(const char *path) { return __wasi_path_create_directory(TOP, path); }
static inline int unlink_file(const char *path) { return __wasi_path_unlink_file(TOP, path); }
static inline int remove_directory(const char *path) { return __wasi_path_remove_directory(TOP, path); }
static inline int symlink_to(const char *target, const char *path) {
    return __wasi_path_symlink(target, TOP, path);
}
static inline int move(const char *from, const char *to) { return __wasi_path_rename(TOP, from, TOP, to); }
static inline int link_to(const char *from, const char *to) { return __wasi_path_link(TOP, 0, from, TOP, to); }
static inline int stat_of(const char *path, int how, __wasi_filestat_t *stat) {
    return __wasi_path_filestat_get(TOP, how, path, stat);
}
static inline int exists(const char *path) {
    __wasi_filestat_t stat;
    return stat_of(path, 0, &stat);
}
static inline int put(__wasi_fd_t fd, const char *text) {
    __wasi_ciovec_t piece = {(const uint8_t *)text, strlen(text)};
    __wasi_size_t written = 0;
    int error = __wasi_fd_write(fd, &piece, 1, &written);
    return error ? error : written == strlen(text) ? 0 : E(IO);
}
/* Whether the bytes at `offset`, as far as the file goes, are `text`. */
static inline bool has(__wasi_fd_t fd, __wasi_filesize_t offset, const char *text) {
    uint8_t bytes[256];
    __wasi_iovec_t piece = {bytes, sizeof bytes};
    __wasi_size_t count = 0;
    return !__wasi_fd_pread(fd, &piece, 1, offset, &count) && count == strlen(text) && !memcmp(bytes, text, count);
}

#endif
