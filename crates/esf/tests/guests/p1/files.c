/* Open files: reading, writing, sizes, times, flags, and descriptors that outlive their names. */
#include "check.h"

static void file_pread_pwrite(void) {
    __wasi_fd_t fd;
    OK(open_for("file", O(CREAT) | O(EXCL), &fd));
    const char *parts[] = {"hello ", "", "world"};
    __wasi_ciovec_t out[3];
    for (int i = 0; i < 3; i++) out[i] = (__wasi_ciovec_t){(const uint8_t *)parts[i], strlen(parts[i])};
    __wasi_size_t count = 0;
    for (__wasi_size_t sent = 0; sent < 11; sent += count) {
        /* Fewer bytes than asked for is no error; what is left goes again. */
        __wasi_ciovec_t rest = {(const uint8_t *)"hello world" + sent, 11 - sent};
        OK(__wasi_fd_pwrite(fd, sent ? &rest : out, sent ? 1 : 3, sent, &count));
        HOLDS(count > 0);
        if (count == 0) break;
    }
    HOLDS(has(fd, 0, "hello world"));
    HOLDS(has(fd, 6, "world"));
    HOLDS(has(fd, 11, ""));
    HOLDS(has(fd, 1000, ""));
    uint8_t one[4], two[3];
    __wasi_iovec_t in[2] = {{one, 4}, {two, 3}};
    OK(__wasi_fd_pread(fd, in, 2, 1, &count));
    HOLDS(count >= 4 && count <= 7 && !memcmp(one, "ello", 4));
    __wasi_filesize_t at = 99;
    OK(__wasi_fd_tell(fd, &at));
    HOLDS(at == 0);
    __wasi_ciovec_t late = {(const uint8_t *)"!", 1};
    OK(__wasi_fd_pwrite(fd, &late, 1, 13, &count));
    uint8_t bytes[32] = {1};
    __wasi_iovec_t whole = {bytes, sizeof bytes};
    OK(__wasi_fd_pread(fd, &whole, 1, 0, &count));
    HOLDS(count == 14 && !memcmp(bytes, "hello world\0\0!", 14));
    OK(__wasi_fd_pwrite(fd, &late, 0, 0, &count));
    HOLDS(count == 0);
    OK(__wasi_fd_close(fd));
    IS(__wasi_fd_close(fd), BADF);
}

static void file_seek_tell(void) {
    __wasi_fd_t fd;
    __wasi_filesize_t at;
    OK(open_for("file", O(CREAT), &fd));
    OK(put(fd, "0123456789"));
    OK(__wasi_fd_tell(fd, &at));
    HOLDS(at == 10);
    OK(__wasi_fd_seek(fd, -4, __WASI_WHENCE_CUR, &at));
    HOLDS(at == 6);
    OK(__wasi_fd_seek(fd, 0, __WASI_WHENCE_END, &at));
    HOLDS(at == 10);
    OK(__wasi_fd_seek(fd, 1000, __WASI_WHENCE_SET, &at));
    HOLDS(at == 1000);
    IS(__wasi_fd_seek(fd, -2000, __WASI_WHENCE_CUR, &at), INVAL);
    IS(__wasi_fd_seek(fd, -1, __WASI_WHENCE_SET, &at), INVAL);
    OK(__wasi_fd_tell(fd, &at));
    HOLDS(at == 1000);
    OK(put(fd, "end"));
    __wasi_filestat_t stat;
    OK(__wasi_fd_filestat_get(fd, &stat));
    HOLDS(stat.size == 1003 && stat.filetype == __WASI_FILETYPE_REGULAR_FILE);
    OK(__wasi_fd_seek(fd, 4, __WASI_WHENCE_SET, &at));
    uint8_t bytes[3];
    __wasi_iovec_t piece = {bytes, 3};
    __wasi_size_t count;
    OK(__wasi_fd_read(fd, &piece, 1, &count));
    HOLDS(count == 3 && !memcmp(bytes, "456", 3));
    OK(__wasi_fd_tell(fd, &at));
    HOLDS(at == 7);
    OK(__wasi_fd_close(fd));
}

static void file_append(void) {
    __wasi_fd_t fd;
    OK(__wasi_path_open(TOP, 0, "file", O(CREAT), ALL_RIGHTS, ALL_RIGHTS, __WASI_FDFLAGS_APPEND, &fd));
    __wasi_filesize_t at;
    OK(put(fd, "one"));
    OK(__wasi_fd_seek(fd, 0, __WASI_WHENCE_SET, &at));
    OK(put(fd, "two"));
    HOLDS(has(fd, 0, "onetwo"));
    __wasi_fdstat_t stat;
    OK(__wasi_fd_fdstat_get(fd, &stat));
    HOLDS(stat.fs_flags & __WASI_FDFLAGS_APPEND);
    OK(__wasi_fd_fdstat_set_flags(fd, 0));
    OK(__wasi_fd_seek(fd, 0, __WASI_WHENCE_SET, &at));
    OK(put(fd, "ONE"));
    HOLDS(has(fd, 0, "ONEtwo"));
    OK(__wasi_fd_close(fd));
}

static void file_truncation(void) {
    __wasi_fd_t fd, other;
    OK(open_for("file", O(CREAT), &fd));
    OK(put(fd, "some bytes"));
    OK(__wasi_fd_filestat_set_size(fd, 4));
    HOLDS(has(fd, 0, "some"));
    OK(__wasi_fd_filestat_set_size(fd, 6));
    uint8_t bytes[8];
    __wasi_iovec_t piece = {bytes, 8};
    __wasi_size_t count;
    OK(__wasi_fd_pread(fd, &piece, 1, 0, &count));
    HOLDS(count == 6 && !memcmp(bytes, "some\0\0", 6));
    OK(open_for("file", O(TRUNC), &other));
    HOLDS(has(fd, 0, ""));
    OK(put(other, "new"));
    HOLDS(has(fd, 0, "new"));
    OK(__wasi_fd_close(other));
    OK(__wasi_fd_close(fd));
}

static void truncation_rights(void) {
    __wasi_fd_t fd;
    OK(open_for("file", O(CREAT), &fd));
    OK(put(fd, "kept"));
    OK(__wasi_fd_close(fd));
    OK(open_with(TOP, "file", 0, 0, READS, &fd));
    IS3(__wasi_fd_filestat_set_size(fd, 0), INVAL, BADF, NOTCAPABLE);
    REFUSED(put(fd, "no"));
    __wasi_ciovec_t piece = {(const uint8_t *)"no", 2};
    __wasi_size_t count;
    REFUSED(__wasi_fd_pwrite(fd, &piece, 1, 0, &count));
    HOLDS(has(fd, 0, "kept"));
    OK(__wasi_fd_close(fd));
    OK(open_with(TOP, "file", 0, 0, ALL_RIGHTS & ~__WASI_RIGHTS_FD_READ & ~__WASI_RIGHTS_FD_READDIR, &fd));
    uint8_t byte;
    __wasi_iovec_t in = {&byte, 1};
    IS3(__wasi_fd_read(fd, &in, 1, &count), BADF, NOTCAPABLE, PERM);
    OK(__wasi_fd_close(fd));
}

static void fd_filestat_set(void) {
    __wasi_fd_t fd;
    __wasi_filestat_t stat;
    OK(open_for("file", O(CREAT), &fd));
    OK(__wasi_fd_filestat_set_size(fd, 100));
    __wasi_timestamp_t old = 86400000000007ull, older = 1000000001ull;
    OK(__wasi_fd_filestat_set_times(fd, older, old, __WASI_FSTFLAGS_ATIM | __WASI_FSTFLAGS_MTIM));
    OK(__wasi_fd_filestat_get(fd, &stat));
    HOLDS(stat.size == 100 && stat.atim == older && stat.mtim == old && stat.nlink == 1);
    OK(__wasi_fd_filestat_set_times(fd, 0, older, __WASI_FSTFLAGS_MTIM));
    OK(__wasi_fd_filestat_get(fd, &stat));
    HOLDS(stat.atim == older && stat.mtim == older);
    IS(__wasi_fd_filestat_set_times(fd, 0, 0, __WASI_FSTFLAGS_MTIM | __WASI_FSTFLAGS_MTIM_NOW), INVAL);
    OK(__wasi_fd_filestat_set_times(fd, 0, 0, __WASI_FSTFLAGS_MTIM_NOW));
    OK(__wasi_fd_filestat_get(fd, &stat));
    HOLDS(stat.mtim > 1500000000000000000ull && stat.atim == older);
    OK(__wasi_fd_close(fd));
}

static void path_filestat(void) {
    __wasi_filestat_t stat;
    __wasi_timestamp_t old = 12345678987654321ull;
    OK(make("file"));
    OK(symlink_to("file", "link"));
    OK(__wasi_path_filestat_set_times(TOP, FOLLOW, "link", 0, old, __WASI_FSTFLAGS_MTIM));
    OK(stat_of("file", 0, &stat));
    HOLDS(stat.mtim == old && stat.size == 0);
    OK(stat_of("link", 0, &stat));
    HOLDS(stat.mtim != old && stat.filetype == __WASI_FILETYPE_SYMBOLIC_LINK && stat.size == 4);
    OK(__wasi_path_filestat_set_times(TOP, 0, "link", 5, 7, __WASI_FSTFLAGS_ATIM | __WASI_FSTFLAGS_MTIM));
    OK(stat_of("link", 0, &stat));
    HOLDS(stat.mtim == 7);
    OK(stat_of("link", FOLLOW, &stat));
    HOLDS(stat.mtim == old && stat.filetype == __WASI_FILETYPE_REGULAR_FILE);
    OK(stat_of(".", 0, &stat));
    HOLDS(stat.filetype == __WASI_FILETYPE_DIRECTORY);
    IS(stat_of("missing", 0, &stat), NOENT);
    IS(stat_of("file/x", 0, &stat), NOTDIR);
}

static void fd_advise(void) {
    __wasi_fd_t fd, directory;
    OK(open_for("file", O(CREAT), &fd));
    for (int advice = __WASI_ADVICE_NORMAL; advice <= __WASI_ADVICE_NOREUSE; advice++)
        OK(__wasi_fd_advise(fd, 0, 4096, (__wasi_advice_t)advice));
    OK(open_for(".", O(DIRECTORY), &directory));
    IS2(__wasi_fd_advise(directory, 0, 0, __WASI_ADVICE_NORMAL), BADF, SUCCESS);
    IS2(__wasi_fd_allocate(fd, 0, 100), NOTSUP, SUCCESS);
    OK(__wasi_fd_close(directory));
    OK(__wasi_fd_close(fd));
    IS(__wasi_fd_advise(fd, 0, 0, __WASI_ADVICE_NORMAL), BADF);
}

static void dangling_fd(void) {
    __wasi_fd_t fd, directory, other;
    __wasi_filestat_t stat;
    OK(open_for("file", O(CREAT), &fd));
    OK(put(fd, "still here"));
    OK(unlink_file("file"));
    IS(exists("file"), NOENT);
    HOLDS(has(fd, 0, "still here"));
    OK(put(fd, ", and more"));
    HOLDS(has(fd, 10, ", and more"));
    OK(open_for("file", O(CREAT) | O(EXCL), &other));
    HOLDS(has(other, 0, ""));
    HOLDS(has(fd, 0, "still here, and more"));
    OK(__wasi_fd_filestat_get(fd, &stat));
    HOLDS(stat.size == 20);
    OK(__wasi_fd_sync(fd));
    OK(__wasi_fd_datasync(fd));
    OK(__wasi_fd_close(other));
    OK(__wasi_fd_close(fd));
    OK(make_directory("directory"));
    OK(open_for("directory", O(DIRECTORY), &directory));
    OK(remove_directory("directory"));
    OK(make_directory("directory"));
    OK(make("directory/of the second"));
    IS(open_with(directory, "new", 0, O(CREAT), ALL_RIGHTS, &other), NOENT);
    IS(open_with(directory, "of the second", 0, 0, READS, &other), NOENT);
    OK(__wasi_fd_close(directory));
}

static void moved_directory(void) {
    __wasi_fd_t directory, fd;
    OK(make_directory("one"));
    OK(make("one/file"));
    OK(open_for("one", O(DIRECTORY), &directory));
    OK(move("one", "two"));
    OK(open_with(directory, "file", 0, 0, READS, &fd));
    OK(__wasi_fd_close(fd));
    OK(open_with(directory, "new", 0, O(CREAT), ALL_RIGHTS, &fd));
    OK(__wasi_fd_close(fd));
    OK(exists("two/new"));
    IS(exists("one"), NOENT);
    OK(__wasi_fd_close(directory));
}

static void overwritten_while_open(void) {
    __wasi_fd_t old, fd;
    OK(open_for("old", O(CREAT), &old));
    OK(put(old, "old"));
    OK(open_for("new", O(CREAT), &fd));
    OK(put(fd, "new"));
    OK(move("new", "old"));
    HOLDS(has(old, 0, "old"));
    HOLDS(has(fd, 0, "new"));
    OK(put(fd, "er"));
    OK(__wasi_fd_close(old));
    OK(__wasi_fd_close(fd));
    OK(open_for("old", 0, &fd));
    HOLDS(has(fd, 0, "newer"));
    OK(__wasi_fd_close(fd));
}

static const struct test tests[] = {
    {"file_pread_pwrite", file_pread_pwrite}, {"file_seek_tell", file_seek_tell},
    {"file_append", file_append}, {"file_truncation", file_truncation},
    {"truncation_rights", truncation_rights}, {"fd_filestat_set", fd_filestat_set},
    {"path_filestat", path_filestat}, {"fd_advise", fd_advise},
    {"dangling_fd", dangling_fd}, {"moved_directory", moved_directory},
    {"overwritten_while_open", overwritten_while_open},
};
MAIN(tests)
