#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* The first 32 bits of the fractions of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2). */
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t value, int bits) {
    return value >> bits | value << (32 - bits);
}

static void compress(uint32_t state[8], const unsigned char block[64]) {
    uint32_t schedule[64];
    for (int t = 0; t < 16; t++)
        schedule[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 |
                      (uint32_t)block[4 * t + 2] << 8 | block[4 * t + 3];
    for (int t = 16; t < 64; t++) {
        uint32_t early = schedule[t - 15], late = schedule[t - 2];
        schedule[t] = schedule[t - 16] + (rotate(early, 7) ^ rotate(early, 18) ^ early >> 3) + schedule[t - 7] +
                      (rotate(late, 17) ^ rotate(late, 19) ^ late >> 10);
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 64; t++) {
        uint32_t first = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) +
                         round_constants[t] + schedule[t];
        uint32_t second = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + first;
        d = c;
        c = b;
        b = a;
        a = first + second;
    }
    const uint32_t added[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++)
        state[i] += added[i];
}

void rk_sha256_begin(struct rk_sha256 *hash) {
    *hash = (struct rk_sha256){
        .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void rk_sha256_add(struct rk_sha256 *hash, const void *data, size_t length) {
    const unsigned char *bytes = data;
    size_t held = hash->length % sizeof hash->block;
    hash->length += length;
    while (length > 0) {
        if (held == 0 && length >= sizeof hash->block) {
            compress(hash->state, bytes);
            bytes += sizeof hash->block;
            length -= sizeof hash->block;
            continue;
        }
        size_t part = sizeof hash->block - held < length ? sizeof hash->block - held : length;
        memcpy(hash->block + held, bytes, part);
        held += part;
        bytes += part;
        length -= part;
        if (held == sizeof hash->block) {
            compress(hash->state, hash->block);
            held = 0;
        }
    }
}

void rk_sha256_end(struct rk_sha256 *hash, unsigned char digest[32]) {
    uint64_t bits = hash->length * 8;
    unsigned char tail[72] = {0x80};
    size_t held = hash->length % 64;
    size_t zeros = (held < 56 ? 56 : 120) - held;
    for (size_t i = 0; i < 8; i++)
        tail[zeros + i] = (unsigned char)(bits >> (56 - 8 * i));
    rk_sha256_add(hash, tail, zeros + 8);
    for (int i = 0; i < 32; i++)
        digest[i] = (unsigned char)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

void rk_sha256_end_hex(struct rk_sha256 *hash, char hex[RK_SHA256_HEX]) {
    unsigned char digest[32];
    rk_sha256_end(hash, digest);
    for (size_t i = 0; i < 32; i++) {
        hex[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    hex[64] = '\0';
}

void rk_sha256_hex(const void *data, size_t length, char hex[RK_SHA256_HEX]) {
    struct rk_sha256 hash;
    rk_sha256_begin(&hash);
    rk_sha256_add(&hash, data, length);
    rk_sha256_end_hex(&hash, hex);
}

enum rk_status rk_sha256_file(const char *path, char hex[RK_SHA256_HEX], struct rk_error *error) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return rk_fail(error, RK_USAGE, "%s: cannot open: %s; check the name and its permissions", path,
                       strerror(errno));
    struct rk_sha256 hash;
    rk_sha256_begin(&hash);
    enum rk_status status = RK_OK;
    unsigned char buffer[16384];
    for (;;) {
        ssize_t got = read(descriptor, buffer, sizeof buffer);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            status = rk_fail(error, RK_ERROR, "%s: cannot read: %s", path, strerror(errno));
        if (got <= 0)
            break;
        rk_sha256_add(&hash, buffer, (size_t)got);
    }
    if (status == RK_OK)
        rk_sha256_end_hex(&hash, hex);
    close(descriptor);
    return status;
}
