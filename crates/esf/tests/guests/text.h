/* Bytes as text and back, and names of errors: what the guests print is compared byte for byte, whether the
   program runs natively or as WebAssembly. Invariant: the escapes are those of `esf dump`. */
#ifndef TEXT_H
#define TEXT_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void print_escaped(const char *bytes, size_t length) {
    for (size_t at = 0; at < length; at++) {
        unsigned char byte = bytes[at];
        if (byte <= ' ' || byte >= 0x7f || strchr("\\,=", byte))
            printf("\\x%02x", byte);
        else
            putchar(byte);
    }
}

/* Undoes \xhh in place; the text never grows. Gives the number of bytes, a NUL stands behind them. */
static inline size_t unescape(char *text) {
    char *to = text;
    for (const char *from = text; *from; to++) {
        char hex[3] = {0};
        if (from[0] == '\\' && from[1] == 'x' && from[2] && from[3]) {
            memcpy(hex, from + 2, 2);
            *to = (char)strtoul(hex, NULL, 16);
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = 0;
    return (size_t)(to - text);
}

/* The symbolic name of an error; numbers differ between systems. */
static inline const char *error_name(int error) {
    static char unknown[32];
    switch (error) {
#define NAME(name) case name: return #name
        NAME(EACCES); NAME(EBADF); NAME(EBUSY); NAME(EDQUOT); NAME(EEXIST); NAME(EFBIG); NAME(EILSEQ);
        NAME(EINVAL); NAME(EIO); NAME(EISDIR); NAME(ELOOP); NAME(EMFILE); NAME(EMLINK); NAME(ENAMETOOLONG);
        NAME(ENOENT); NAME(ENOMEM); NAME(ENOSPC); NAME(ENOSYS); NAME(ENOTDIR); NAME(ENOTEMPTY); NAME(ENOTSUP);
        NAME(EOVERFLOW); NAME(EPERM); NAME(EPIPE); NAME(EROFS); NAME(ESPIPE); NAME(ETXTBSY); NAME(EXDEV);
#ifdef ENOTCAPABLE
        NAME(ENOTCAPABLE);
#endif
#undef NAME
    }
    snprintf(unknown, sizeof unknown, "E%d", error);
    return unknown;
}

/* Ends the program with a sentence: a guest that cannot do its work must not look as if it had. */
static inline _Noreturn void die(const char *what, const char *which) {
    int error = errno;
    fflush(stdout);
    fprintf(stderr, "%s %s: %s\n", what, which, error_name(error));
    exit(1);
}

#endif
