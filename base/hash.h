/* SHA-256 (FIPS 180-4), for provenance and the shards of checkpoints. */
#ifndef RK_BASE_HASH_H
#define RK_BASE_HASH_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct rk_sha256 {
    uint32_t state[8];
    uint64_t length;         /* bytes so far */
    unsigned char block[64]; /* the bytes of the unfinished block */
};

enum { RK_SHA256_HEX = 65 }; /* 64 digits and the final zero */

void rk_sha256_begin(struct rk_sha256 *hash);
void rk_sha256_add(struct rk_sha256 *hash, const void *data, size_t length);
/* Ends the hash; *hash must begin anew after it. */
void rk_sha256_end(struct rk_sha256 *hash, unsigned char digest[32]);
void rk_sha256_end_hex(struct rk_sha256 *hash, char hex[RK_SHA256_HEX]);

void rk_sha256_hex(const void *data, size_t length, char hex[RK_SHA256_HEX]);
/* The hash of a whole file, streamed. */
enum rk_status rk_sha256_file(const char *path, char hex[RK_SHA256_HEX], struct rk_error *error);

#endif
