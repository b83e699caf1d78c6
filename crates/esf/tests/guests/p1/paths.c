/* Names: how paths resolve, what links, renames and removals do, and which errors they give. */
#include "check.h"

static void interesting_paths(void) {
    __wasi_fd_t fd;
    OK(make_directory("dir"));
    OK(make_directory("dir/nested"));
    OK(make("dir/nested/file"));
    IS2(open_for("/dir/nested/file", 0, &fd), PERM, NOTCAPABLE);
    IS2(open_for("/", O(DIRECTORY), &fd), PERM, NOTCAPABLE);
    static const char *const good[] = {
        "dir/nested/file", "./dir/nested/file", "dir/.//nested/../../dir/nested/../nested///./file",
        "dir/nested/../nested/file"};
    for (int i = 0; i < 4; i++) {
        OK(open_for(good[i], 0, &fd));
        OK(__wasi_fd_close(fd));
    }
    IS(open_for("dir/nested/file/", 0, &fd), NOTDIR);
    IS(open_for("dir/nested/file/.", 0, &fd), NOTDIR);
    IS(open_for("dir/nested/file/..", 0, &fd), NOTDIR);
    IS(open_for("dir/nested/missing/../file", 0, &fd), NOENT);
    static const char *const directories[] = {"dir/nested", "dir/nested/", "dir/nested/.", "dir/nested///",
                                              "dir/nested/../nested/", ".", "./", "dir/.."};
    for (int i = 0; i < 8; i++) {
        OK(open_for(directories[i], O(DIRECTORY), &fd));
        OK(__wasi_fd_close(fd));
    }
    static const char *const outside[] = {"..", "../", "../dir", "dir/nested/../../..", "dir/../../dir/nested/file",
                                          "./../x"};
    for (int i = 0; i < 6; i++) IS2(open_for(outside[i], 0, &fd), PERM, NOTCAPABLE);
    IS2(open_for("", 0, &fd), NOENT, INVAL);
    IS2(open_for("dir/nested/file", O(DIRECTORY), &fd), NOTDIR, NOTDIR);
}

static void path_open_variants(void) {
    __wasi_fd_t fd, file;
    OK(make("file"));
    IS(open_for("file", O(CREAT) | O(EXCL), &fd), EXIST);
    IS(open_for("missing", 0, &fd), NOENT);
    IS(open_for("missing/x", O(CREAT), &fd), NOENT);
    OK(open_for("file", O(CREAT), &file));
    IS2(open_with(file, "x", 0, O(CREAT), ALL_RIGHTS, &fd), NOTDIR, BADF);
    IS2(__wasi_path_create_directory(file, "x"), NOTDIR, BADF);
    OK(__wasi_fd_close(file));
    IS(open_with(99, "x", 0, 0, READS, &fd), BADF);
    OK(make_directory("dir"));
    IS(open_for("dir", O(CREAT) | O(EXCL), &fd), EXIST);
    IS2(open_with(TOP, "dir", 0, O(TRUNC), ALL_RIGHTS, &fd), ISDIR, INVAL);
    IS2(open_for("new", O(CREAT) | O(DIRECTORY), &fd), INVAL, NOTDIR);
    IS2(open_for("dir/", O(CREAT) | O(EXCL), &fd), EXIST, ISDIR);
    OK(symlink_to("file", "link"));
    IS(open_for("link", O(CREAT) | O(EXCL), &fd), EXIST);
}

static void symlink_loop(void) {
    __wasi_fd_t fd;
    __wasi_filestat_t stat;
    OK(symlink_to("loop", "loop"));
    OK(symlink_to("pong", "ping"));
    OK(symlink_to("ping", "pong"));
    static const char *const loops[] = {"loop", "ping", "pong"};
    for (int i = 0; i < 3; i++) {
        IS(open_with(TOP, loops[i], 0, 0, READS, &fd), LOOP);
        IS(open_with(TOP, loops[i], FOLLOW, 0, READS, &fd), LOOP);
        IS(open_with(TOP, loops[i], FOLLOW, O(CREAT), ALL_RIGHTS, &fd), LOOP);
        IS(stat_of(loops[i], FOLLOW, &stat), LOOP);
        OK(stat_of(loops[i], 0, &stat));
    }
    IS(open_for("loop/x", 0, &fd), LOOP);
    OK(unlink_file("loop"));
    IS(exists("loop"), NOENT);
}

static void nofollow_errors(void) {
    __wasi_fd_t fd;
    OK(make_directory("target"));
    OK(symlink_to("target", "link"));
    IS2(open_with(TOP, "link", 0, O(DIRECTORY), READS, &fd), LOOP, NOTDIR);
    IS(open_with(TOP, "link", 0, 0, READS, &fd), LOOP);
    OK(open_with(TOP, "link", FOLLOW, O(DIRECTORY), READS, &fd));
    OK(__wasi_fd_close(fd));
    OK(remove_directory("target"));
    IS(open_with(TOP, "link", FOLLOW, O(DIRECTORY), READS, &fd), NOENT);
    OK(make("target"));
    IS(open_with(TOP, "link", 0, 0, READS, &fd), LOOP);
    IS2(open_with(TOP, "link", 0, O(DIRECTORY), READS, &fd), LOOP, NOTDIR);
    OK(open_with(TOP, "link", FOLLOW, 0, READS, &fd));
    OK(__wasi_fd_close(fd));
    IS(open_with(TOP, "link", FOLLOW, O(DIRECTORY), READS, &fd), NOTDIR);
    IS(remove_directory("link"), NOTDIR);
    OK(unlink_file("link"));
    OK(exists("target"));
}

static void dangling_symlink(void) {
    __wasi_fd_t fd;
    __wasi_filestat_t stat;
    OK(symlink_to("nowhere", "link"));
    IS(open_with(TOP, "link", 0, 0, READS, &fd), LOOP);
    IS(open_with(TOP, "link", FOLLOW, 0, READS, &fd), NOENT);
    IS(stat_of("link", FOLLOW, &stat), NOENT);
    OK(stat_of("link", 0, &stat));
    IS(make_directory("link"), EXIST);
    IS(symlink_to("elsewhere", "link"), EXIST);
    IS(open_with(TOP, "link/", FOLLOW, 0, READS, &fd), NOENT);
    OK(open_with(TOP, "link", FOLLOW, O(CREAT), ALL_RIGHTS, &fd));
    OK(__wasi_fd_close(fd));
    OK(exists("nowhere"));
}

static void links_out(void) {
    __wasi_fd_t fd;
    __wasi_filestat_t stat;
    OK(make_directory("dir"));
    OK(symlink_to("..", "up"));
    OK(symlink_to("../../../../etc", "etc"));
    OK(symlink_to("../file", "dir/in"));
    OK(symlink_to("../../file", "dir/out"));
    OK(make("file"));
    OK(open_with(TOP, "dir/in", FOLLOW, 0, READS, &fd));
    OK(__wasi_fd_close(fd));
    static const char *const out[] = {"up", "up/", "up/.", "up//x", "etc", "etc/", "etc/passwd", "etc//passwd",
                                      "dir/out"};
    for (int i = 0; i < 9; i++) {
        IS2(open_with(TOP, out[i], FOLLOW, 0, READS, &fd), PERM, NOTCAPABLE);
        IS3(open_with(TOP, out[i], FOLLOW, O(CREAT), ALL_RIGHTS, &fd), PERM, NOTCAPABLE, ISDIR);
        IS2(stat_of(out[i], FOLLOW, &stat), PERM, NOTCAPABLE);
    }
    static const char *const through[] = {"up/x", "etc/x", "etc/../x"};
    for (int i = 0; i < 3; i++) {
        IS2(make_directory(through[i]), PERM, NOTCAPABLE);
        IS2(unlink_file(through[i]), PERM, NOTCAPABLE);
        IS2(remove_directory(through[i]), PERM, NOTCAPABLE);
        IS2(symlink_to("x", through[i]), PERM, NOTCAPABLE);
        IS2(move("file", through[i]), PERM, NOTCAPABLE);
        IS2(move(through[i], "file"), PERM, NOTCAPABLE);
        IS2(link_to("file", through[i]), PERM, NOTCAPABLE);
        IS2(link_to(through[i], "y"), PERM, NOTCAPABLE);
    }
    IS2(symlink_to("/etc/passwd", "absolute"), PERM, NOTCAPABLE);
}

static void path_link(void) {
    __wasi_fd_t fd, other;
    __wasi_filestat_t one, two;
    OK(open_for("file", O(CREAT), &fd));
    OK(link_to("file", "link"));
    OK(open_for("link", 0, &other));
    OK(put(fd, "shared"));
    HOLDS(has(other, 0, "shared"));
    OK(__wasi_fd_filestat_get(fd, &one));
    OK(__wasi_fd_filestat_get(other, &two));
    HOLDS(one.dev == two.dev && one.ino == two.ino && one.nlink == 2 && two.nlink == 2);
    OK(__wasi_fd_close(other));
    OK(__wasi_fd_close(fd));
    IS(link_to("file", "link"), EXIST);
    IS(link_to("missing", "new"), NOENT);
    IS(link_to("file", "missing/new"), NOENT);
    IS2(link_to("file", "new/"), NOENT, NOTDIR);
    OK(make_directory("dir"));
    IS2(link_to("dir", "dirlink"), PERM, ACCES);
    IS(link_to("file", "dir"), EXIST);
    OK(link_to("file", "dir/inner"));
    OK(unlink_file("file"));
    OK(exists("link"));
    OK(exists("dir/inner"));
    OK(symlink_to("link", "symlink"));
    OK(link_to("symlink", "symlink2"));
    OK(stat_of("symlink2", 0, &one));
    HOLDS(one.filetype == __WASI_FILETYPE_SYMBOLIC_LINK);
}

static void path_rename(void) {
    __wasi_filestat_t stat;
    OK(make_directory("dir"));
    OK(move("dir", "moved"));
    IS(exists("dir"), NOENT);
    OK(make_directory("empty"));
    OK(make("moved/file"));
    OK(move("moved", "empty"));
    OK(exists("empty/file"));
    OK(make_directory("full"));
    OK(make("full/other"));
    IS2(move("empty", "full"), NOTEMPTY, EXIST);
    OK(make("file"));
    IS(move("empty", "file"), NOTDIR);
    IS(move("file", "empty"), ISDIR);
    OK(make("file2"));
    OK(move("file", "file2"));
    IS(exists("file"), NOENT);
    OK(move("file2", "file2"));
    OK(exists("file2"));
    IS(move("missing", "x"), NOENT);
    IS(move("file2", "missing/x"), NOENT);
    IS(move("empty", "empty/inside"), INVAL);
    IS(move("file2", "file2/x"), NOTDIR);
    OK(symlink_to("nowhere", "link"));
    OK(move("link", "link2"));
    OK(stat_of("link2", 0, &stat));
    HOLDS(stat.filetype == __WASI_FILETYPE_SYMBOLIC_LINK);
    OK(move("file2", "link2"));
    OK(stat_of("link2", 0, &stat));
    HOLDS(stat.filetype == __WASI_FILETYPE_REGULAR_FILE);
    OK(link_to("link2", "same"));
    OK(move("link2", "same"));
    OK(exists("same"));
}

static void trailing_slashes(void) {
    __wasi_filestat_t stat;
    OK(make("file"));
    OK(make_directory("dir"));
    IS(move("file/", "x"), NOTDIR);
    IS2(move("file", "x/"), NOTDIR, NOENT);
    IS2(move("file", "dir/"), ISDIR, NOTDIR);
    OK(move("dir", "other/"));
    OK(move("other/", "dir"));
    IS(unlink_file("file/"), NOTDIR);
    IS2(unlink_file("dir/"), ISDIR, PERM);
    IS(unlink_file("missing/"), NOENT);
    OK(make_directory("slash/"));
    OK(exists("slash"));
    IS(make_directory("slash/"), EXIST);
    OK(remove_directory("slash/"));
    IS(exists("slash"), NOENT);
    IS(remove_directory("file/"), NOTDIR);
    IS2(symlink_to("file", "dir/"), EXIST, NOENT);
    IS3(symlink_to("file", "new/"), NOENT, NOTDIR, INVAL);
    IS3(symlink_to("file", "file/"), NOTDIR, EXIST, NOENT);
    OK(symlink_to("dir", "link"));
    OK(stat_of("link/", 0, &stat));
    HOLDS(stat.filetype == __WASI_FILETYPE_DIRECTORY);
    IS(remove_directory("link/"), NOTDIR);
    OK(exists("dir"));
}

static void removals(void) {
    OK(make_directory("dir"));
    OK(make("dir/file"));
    IS2(remove_directory("dir"), NOTEMPTY, EXIST);
    IS2(unlink_file("dir"), ISDIR, PERM);
    IS(remove_directory("dir/file"), NOTDIR);
    IS(unlink_file("missing"), NOENT);
    IS(remove_directory("missing"), NOENT);
    OK(unlink_file("dir/file"));
    OK(remove_directory("dir"));
    REFUSED(remove_directory("."));
    REFUSED(unlink_file("."));
    OK(make("still"));
}

static void path_readlink(void) {
    uint8_t bytes[16];
    __wasi_size_t count;
    OK(symlink_to("target", "link"));
    OK(__wasi_path_readlink(TOP, "link", bytes, sizeof bytes, &count));
    HOLDS(count == 6 && !memcmp(bytes, "target", 6));
    memset(bytes, 0, sizeof bytes);
    IS2(__wasi_path_readlink(TOP, "link", bytes, 3, &count), SUCCESS, RANGE);
    HOLDS(bytes[3] == 0);
    OK(make("file"));
    IS(__wasi_path_readlink(TOP, "file", bytes, sizeof bytes, &count), INVAL);
    IS(__wasi_path_readlink(TOP, "missing", bytes, sizeof bytes, &count), NOENT);
}

static void overwrite_preopen(void) {
    OK(make_directory("dir"));
    OK(make("file"));
    REFUSED(move("dir", "."));
    REFUSED(move("file", "."));
    REFUSED(move(".", "dir"));
    REFUSED(move(".", "new"));
    REFUSED(move("dir", "dir/.."));
    REFUSED(move("dir/..", "new"));
    IS2(move("dir", ".."), PERM, NOTCAPABLE);
    REFUSED(link_to(".", "new"));
    REFUSED(make_directory("."));
    OK(exists("dir"));
    OK(exists("file"));
    IS(exists("new"), NOENT);
}

static const struct test tests[] = {
    {"interesting_paths", interesting_paths}, {"path_open_variants", path_open_variants},
    {"symlink_loop", symlink_loop}, {"nofollow_errors", nofollow_errors},
    {"dangling_symlink", dangling_symlink}, {"links_out", links_out},
    {"path_link", path_link}, {"path_rename", path_rename},
    {"trailing_slashes", trailing_slashes}, {"removals", removals},
    {"path_readlink", path_readlink}, {"overwrite_preopen", overwrite_preopen},
};
MAIN(tests)
