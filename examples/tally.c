/* An agent for the WASI executor: counts lines, words and bytes of the files it is given, and writes
 * them to tally.txt beside them. Build it with
 *   clang --target=wasm32-wasi -O2 -o tally.wasm examples/tally.c
 * (Debian: clang lld wasi-libc libclang-rt-dev-wasm32). */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    FILE *tally = fopen("tally.txt", "w");
    if (!tally) {
        perror("tally.txt");
        return 1;
    }
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "r");
        if (!file) {
            perror(argv[i]);
            return 1;
        }
        long lines = 0, words = 0, bytes = 0;
        for (int c, inside = 0; (c = getc(file)) != EOF; bytes++) {
            lines += c == '\n';
            words += !isspace(c) && !inside;
            inside = !isspace(c);
        }
        fclose(file);
        fprintf(tally, "%ld %ld %ld %s\n", lines, words, bytes, argv[i]);
        printf("%ld %ld %ld %s\n", lines, words, bytes, argv[i]);
    }
    return fclose(tally) == 0 ? 0 : 1;
}
