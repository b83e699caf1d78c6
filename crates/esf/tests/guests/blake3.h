/* BLAKE3 of a stream, one block after another, after the published specification: so that a walk names
   contents exactly as `esf dump` does. Invariant: state fits a few KiB whatever the length. */
#ifndef BLAKE3_H
#define BLAKE3_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { CHUNK = 1024, BLOCK = 64, CHUNK_START = 1, CHUNK_END = 2, PARENT = 4, ROOT = 8 };

static const uint32_t BLAKE3_IV[8] = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                      0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};

struct blake3 {
    uint32_t stack[54][8]; /* chaining values of complete subtrees, largest first */
    int depth;
    uint32_t value[8]; /* of the chunk under way */
    uint64_t chunk;
    uint8_t block[BLOCK];
    size_t in_block, blocks;
};

static inline uint32_t rotated(uint32_t word, int by) { return word >> by | word << (32 - by); }

static inline void blake3_mix(uint32_t *s, int a, int b, int c, int d, uint32_t x, uint32_t y) {
    s[a] += s[b] + x, s[d] = rotated(s[d] ^ s[a], 16), s[c] += s[d], s[b] = rotated(s[b] ^ s[c], 12);
    s[a] += s[b] + y, s[d] = rotated(s[d] ^ s[a], 8), s[c] += s[d], s[b] = rotated(s[b] ^ s[c], 7);
}

/* The first half of the compression's output: a chaining value, or 32 bytes of the root. */
static inline void blake3_compress(uint32_t out[8], const uint32_t in[8], const uint8_t block[BLOCK],
                                   uint64_t counter, uint32_t length, uint32_t flags) {
    static const uint8_t order[16] = {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8};
    uint32_t m[16], next[16], s[16];
    for (int i = 0; i < 16; i++)
        m[i] = block[4 * i] | block[4 * i + 1] << 8 | block[4 * i + 2] << 16 | (uint32_t)block[4 * i + 3] << 24;
    memcpy(s, in, 32), memcpy(s + 8, BLAKE3_IV, 16);
    s[12] = (uint32_t)counter, s[13] = (uint32_t)(counter >> 32), s[14] = length, s[15] = flags;
    for (int round = 0; round < 7; round++) {
        for (int i = 0; i < 4; i++) blake3_mix(s, i, 4 + i, 8 + i, 12 + i, m[2 * i], m[2 * i + 1]);
        for (int i = 0; i < 4; i++)
            blake3_mix(s, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[8 + 2 * i], m[9 + 2 * i]);
        for (int i = 0; i < 16; i++) next[i] = m[order[i]];
        memcpy(m, next, sizeof m);
    }
    for (int i = 0; i < 8; i++) out[i] = s[i] ^ s[i + 8];
}

static inline void blake3_join(uint32_t out[8], const uint32_t left[8], const uint32_t right[8], uint32_t flags) {
    uint8_t block[BLOCK];
    for (int i = 0; i < 16; i++)
        for (int byte = 0; byte < 4; byte++)
            block[4 * i + byte] = (uint8_t)((i < 8 ? left[i] : right[i - 8]) >> (8 * byte));
    blake3_compress(out, BLAKE3_IV, block, 0, BLOCK, PARENT | flags);
}

static inline void blake3_start(struct blake3 *h) {
    memset(h, 0, sizeof *h);
    memcpy(h->value, BLAKE3_IV, 32);
}

static inline void blake3_add(struct blake3 *h, const uint8_t *bytes, size_t length) {
    while (length > 0) {
        if (h->in_block == BLOCK) {
            uint32_t flags = h->blocks == 0 ? CHUNK_START : 0;
            int ends = h->blocks == CHUNK / BLOCK - 1;
            blake3_compress(h->value, h->value, h->block, h->chunk, BLOCK, flags | (ends ? CHUNK_END : 0));
            h->in_block = 0, h->blocks++;
            if (ends) {
                uint64_t total = ++h->chunk;
                for (; (total & 1) == 0; total >>= 1)
                    blake3_join(h->value, h->stack[--h->depth], h->value, 0);
                memcpy(h->stack[h->depth++], h->value, 32);
                memcpy(h->value, BLAKE3_IV, 32), h->blocks = 0;
            }
        }
        size_t taken = BLOCK - h->in_block < length ? BLOCK - h->in_block : length;
        memcpy(h->block + h->in_block, bytes, taken);
        h->in_block += taken, bytes += taken, length -= taken;
    }
}

static inline void blake3_end(struct blake3 *h, uint32_t out[8]) {
    memset(h->block + h->in_block, 0, BLOCK - h->in_block);
    uint32_t flags = CHUNK_END | (h->blocks == 0 ? CHUNK_START : 0) | (h->depth == 0 ? ROOT : 0);
    blake3_compress(out, h->value, h->block, h->chunk, (uint32_t)h->in_block, flags);
    while (h->depth > 0) {
        h->depth--;
        blake3_join(out, h->stack[h->depth], out, h->depth == 0 ? ROOT : 0);
    }
}

#endif
