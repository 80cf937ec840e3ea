/* What a step is trained on: windows of T + 1 tokens, from a token file or made by a formula.
 *
 * Window n = (step · m + micro) · D + data rank holds tokens n·T to n·T + T inclusive; its inputs are the first T, its
 * targets the last T. A file of L tokens has floor((L - 1) / T) windows and window n is n modulo that number. The
 * windows of a step depend on T only, so every layout of the same T and global batch trains on the same set. */
#ifndef RK_EXECUTOR_DATA_H
#define RK_EXECUTOR_DATA_H

#include "base/status.h"

#include <stdint.h>

struct rk_data;

struct rk_data_options {
    const char *path;      /* token file, or NULL: synthetic */
    int64_t vocabulary;    /* V: every token must be below it */
    int64_t window_tokens; /* T */
    uint64_t seed;         /* of synthetic tokens */
};

/* Opens the tokens. A file too short for one window is RK_USAGE. Close with rk_data_close. */
enum rk_status rk_data_open(const struct rk_data_options *options, struct rk_data **data, struct rk_error *error);
void rk_data_close(struct rk_data *data);

/* Tokens of window n into tokens[T + 1]. A token outside the vocabulary is RK_USAGE and named with its place in the
 * file. */
enum rk_status rk_data_window(const struct rk_data *data, int64_t window, int32_t *tokens, struct rk_error *error);

/* "FILE, 1,048,577 tokens" or "synthetic, seed 1": for people and for the data base. */
void rk_data_describe(const struct rk_data *data, char *text, size_t size);

/* Synthetic token i of a vocabulary: a skewed distribution that a model learns at once. Source: the peer's formula, in
 * uint64: x = (i + 1) · 0x9E3779B97F4A7C15 + seed; x = (x ^ x >> 30) · 0xBF58476D1CE4E5B9;
 * x = (x ^ x >> 27) · 0x94D049BB133111EB; u = (x ^ x >> 31) >> 40; ((u·u >> 24) · u >> 24) · V >> 24. */
int32_t rk_data_synthetic_token(uint64_t index, uint64_t seed, int64_t vocabulary);

#endif
