/* What the published preview 1 adapter allocates its own state with. Without this export it grows the memory
   by a page before main, and a wasi-libc as old as Debian 12's (before LLVM's __heap_end) takes all memory that is
   there at the first malloc for its heap, that page included: a larger heap then overwrites the adapter. */
#include <stdlib.h>

__attribute__((export_name("cabi_realloc"))) void *cabi_realloc(void *old, size_t was, size_t align, size_t size) {
    (void)was, (void)align;
    return realloc(old, size);
}
