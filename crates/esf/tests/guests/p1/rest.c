/* Listings, descriptors, standard streams, clocks, polls. */
#include "check.h"

/* Adds the names of one listing to `seen`, through a buffer of that size; `.` and `..` aside, which the published
   adapter repeats when a buffer ends within them. */
static int listed(__wasi_fd_t fd, size_t size, char seen[][16], int most) {
    uint8_t buffer[1024];
    __wasi_dircookie_t cookie = __WASI_DIRCOOKIE_START;
    int count = 0;
    for (int turn = 0; turn < 1000; turn++) {
        __wasi_size_t used = 0;
        if (__wasi_fd_readdir(fd, buffer, size, cookie, &used)) return -1;
        __wasi_dirent_t entry;
        size_t at = 0;
        while (at + sizeof entry <= used) {
            memcpy(&entry, buffer + at, sizeof entry);
            if (at + sizeof entry + entry.d_namlen > used) break;
            const char *name = (char *)buffer + at + sizeof entry;
            if (name[0] != '.') {
                if (count < most) snprintf(seen[count], 16, "%.*s", (int)entry.d_namlen, name);
                count++;
            }
            cookie = entry.d_next, at += sizeof entry + entry.d_namlen;
        }
        if (used < size) return count;
    }
    return -1;
}

static bool among(char seen[][16], int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (!strcmp(seen[i], name)) return true;
    return false;
}

static void fd_readdir(void) {
    static char seen[64][16];
    __wasi_fd_t fd;
    OK(make_directory("dir"));
    OK(open_for("dir", O(DIRECTORY), &fd));
    HOLDS(listed(fd, 1024, seen, 64) == 0);
    char name[16];
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "dir/%02d", i);
        OK(make(name));
    }
    static const size_t sizes[] = {1024, 64, 33, 100};
    for (int s = 0; s < 4; s++) {
        int count = listed(fd, sizes[s], seen, 64);
        HOLDS(count == 40);
        for (int i = 0; count == 40 && i < 40; i++) {
            snprintf(name, sizeof name, "%02d", i);
            HOLDS(among(seen, 40, name));
        }
    }
    OK(unlink_file("dir/07"));
    HOLDS(listed(fd, 1024, seen, 64) == 39 && !among(seen, 39, "07"));
    OK(__wasi_fd_close(fd));
    __wasi_size_t used;
    uint8_t buffer[64];
    IS(__wasi_fd_readdir(fd, buffer, sizeof buffer, 0, &used), BADF);
    OK(open_for("dir/08", 0, &fd));
    IS2(__wasi_fd_readdir(fd, buffer, sizeof buffer, 0, &used), NOTDIR, BADF);
    OK(__wasi_fd_close(fd));
}

static void fd_renumber(void) {
    __wasi_fd_t one, two;
    OK(open_for("one", O(CREAT), &one));
    OK(open_for("two", O(CREAT), &two));
    OK(put(one, "1"));
    OK(put(two, "2"));
    OK(__wasi_fd_renumber(one, two));
    HOLDS(has(two, 0, "1"));
    IS(__wasi_fd_close(one), BADF);
    IS(__wasi_fd_renumber(one, two), BADF);
    IS(__wasi_fd_renumber(two, 5000), BADF);
    OK(__wasi_fd_renumber(two, two));
    HOLDS(has(two, 0, "1"));
    OK(__wasi_fd_close(two));
}

static void stdio(void) {
    for (__wasi_fd_t fd = 0; fd < 3; fd++) {
        __wasi_fdstat_t stat;
        OK(__wasi_fd_fdstat_get(fd, &stat));
        HOLDS(stat.fs_filetype != __WASI_FILETYPE_REGULAR_FILE && stat.fs_filetype != __WASI_FILETYPE_DIRECTORY);
        HOLDS(stat.fs_filetype != __WASI_FILETYPE_CHARACTER_DEVICE);
        __wasi_filesize_t at;
        IS2(__wasi_fd_seek(fd, 0, __WASI_WHENCE_CUR, &at), SPIPE, BADF);
        REFUSED(__wasi_fd_filestat_set_size(fd, 0));
    }
    uint8_t byte;
    __wasi_iovec_t piece = {&byte, 1};
    __wasi_size_t count = 9;
    OK(__wasi_fd_read(0, &piece, 1, &count));
    HOLDS(count == 0);
    REFUSED(put(0, "x"));
    REFUSED(__wasi_fd_read(1, &piece, 1, &count));
}

static void preopens(void) {
    __wasi_prestat_t stat;
    char name[64] = {0};
    OK(__wasi_fd_prestat_get(TOP, &stat));
    HOLDS(stat.tag == __WASI_PREOPENTYPE_DIR && stat.u.dir.pr_name_len < sizeof name);
    OK(__wasi_fd_prestat_dir_name(TOP, (uint8_t *)name, sizeof name));
    HOLDS(strlen(name) == stat.u.dir.pr_name_len);
    int last = TOP;
    while (last < 100 && !__wasi_fd_prestat_get(last, &stat)) last++;
    IS(__wasi_fd_prestat_get(last, &stat), BADF);
    IS(__wasi_fd_prestat_get(0, &stat), BADF);
    __wasi_fd_t fd;
    OK(open_for(".", O(DIRECTORY), &fd));
    IS2(__wasi_fd_prestat_get(fd, &stat), BADF, NOTDIR);
    OK(__wasi_fd_close(fd));
}

static void clocks(void) {
    __wasi_timestamp_t resolution = 0, one = 0, two = 0;
    OK(__wasi_clock_res_get(__WASI_CLOCKID_REALTIME, &resolution));
    HOLDS(resolution > 0 && resolution <= 1000000000);
    OK(__wasi_clock_res_get(__WASI_CLOCKID_MONOTONIC, &resolution));
    HOLDS(resolution > 0 && resolution <= 1000000000);
    OK(__wasi_clock_time_get(__WASI_CLOCKID_MONOTONIC, 1, &one));
    for (int i = 0; i < 1000; i++) {
        OK(__wasi_clock_time_get(__WASI_CLOCKID_MONOTONIC, 1, &two));
        HOLDS(two >= one);
        one = two;
    }
    OK(__wasi_clock_time_get(__WASI_CLOCKID_REALTIME, 1, &one));
    HOLDS(one > 1500000000000000000ull);
    OK(__wasi_sched_yield());
}

static __wasi_subscription_t clock_due(uint64_t nanoseconds) {
    __wasi_subscription_t asked = {.userdata = nanoseconds};
    asked.u.tag = __WASI_EVENTTYPE_CLOCK;
    asked.u.u.clock.id = __WASI_CLOCKID_MONOTONIC;
    asked.u.u.clock.timeout = nanoseconds;
    return asked;
}

static __wasi_subscription_t stream_ready(int tag, __wasi_fd_t fd) {
    __wasi_subscription_t asked = {.userdata = 100 + fd};
    asked.u.tag = (__wasi_eventtype_t)tag;
    asked.u.u.fd_read.file_descriptor = fd;
    return asked;
}

static void polls(void) {
    __wasi_event_t events[4];
    __wasi_size_t count = 0;
    __wasi_timestamp_t before, after;
    __wasi_subscription_t clock[2] = {clock_due(50000000), clock_due(3600000000000ull)};
    OK(__wasi_clock_time_get(__WASI_CLOCKID_MONOTONIC, 1, &before));
    OK(__wasi_poll_oneoff(clock, events, 2, &count));
    OK(__wasi_clock_time_get(__WASI_CLOCKID_MONOTONIC, 1, &after));
    HOLDS(count == 1 && events[0].userdata == 50000000 && events[0].type == __WASI_EVENTTYPE_CLOCK);
    HOLDS(after - before >= 50000000 && after - before < 5000000000);
    __wasi_subscription_t ready[3] = {clock_due(3600000000000ull), stream_ready(__WASI_EVENTTYPE_FD_WRITE, 1),
                                      stream_ready(__WASI_EVENTTYPE_FD_READ, 0)};
    OK(__wasi_poll_oneoff(ready, events, 3, &count));
    HOLDS(count >= 1 && (events[0].userdata == 101 || events[0].userdata == 100) && !events[0].error);
    IS(__wasi_poll_oneoff(ready, events, 0, &count), INVAL);
    clock[0] = clock_due(before);
    clock[0].u.u.clock.flags = __WASI_SUBCLOCKFLAGS_SUBSCRIPTION_CLOCK_ABSTIME;
    OK(__wasi_poll_oneoff(clock, events, 1, &count));
    HOLDS(count == 1);
}

static void random_numbers(void) {
    static uint8_t one[70000], two[70000];
    OK(__wasi_random_get(one, sizeof one));
    OK(__wasi_random_get(two, sizeof two));
    HOLDS(memcmp(one, two, sizeof one));
    HOLDS(memcmp(one, one + 35000, 35000));
    OK(__wasi_random_get(one, 0));
}

static void sockets_are_none(void) {
    /* Not sock_accept: in the published adapter it is a trap. */
    REFUSED(__wasi_sock_shutdown(1, __WASI_SDFLAGS_RD));
}

static void closed_preopen(void) {
    __wasi_fd_t fd;
    __wasi_prestat_t stat;
    OK(__wasi_fd_close(TOP));
    IS(open_for("x", O(CREAT), &fd), BADF);
    IS(__wasi_fd_prestat_get(TOP, &stat), BADF);
}

static const struct test tests[] = {
    {"fd_readdir", fd_readdir}, {"fd_renumber", fd_renumber}, {"stdio", stdio}, {"preopens", preopens},
    {"clocks", clocks}, {"polls", polls}, {"random_numbers", random_numbers},
    {"sockets_are_none", sockets_are_none}, {"closed_preopen", closed_preopen},
};
MAIN(tests)
