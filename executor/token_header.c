#include "executor/token_header.h"

#include <stdio.h>
#include <string.h>

/* llm.c, dev/data/data_common.py. */
enum { LLMC_INTS = 256 };
static const struct {
    uint32_t magic, version;
    int token_bytes;
} llmc_kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};

static const char npy_magic[] = "\x93NUMPY";
enum { NPY_MAGIC_LENGTH = 6, NPY_WRITTEN_SIZE = 128 };

static uint32_t little_32(const unsigned char *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static void put_little_32(unsigned char *bytes, uint32_t value) {
    for (int i = 0; i < 4; i++)
        bytes[i] = (unsigned char)(value >> (8 * i));
}

static enum rk_status read_llmc(const char *path, const unsigned char *bytes, size_t length, size_t kind,
                                struct rk_token_header *header, struct rk_error *error) {
    if (length < LLMC_INTS * 4)
        return rk_fail(error, RK_USAGE,
                       "%s: begins like a token file of llm.c but ends inside the header; it is cut short", path);
    uint32_t version = little_32(bytes + 4);
    if (version != llmc_kinds[kind].version)
        return rk_fail(error, RK_USAGE, "%s: llm.c token file of version %u; version %u is known for its magic %u",
                       path, version, llmc_kinds[kind].version, llmc_kinds[kind].magic);
    int32_t count = (int32_t)little_32(bytes + 8);
    if (count < 0)
        return rk_fail(error, RK_USAGE, "%s: the header says %d tokens; the file is damaged", path, count);
    *header = (struct rk_token_header){.format = RK_TOKEN_LLMC,
                                       .token_bytes = llmc_kinds[kind].token_bytes,
                                       .first_byte = LLMC_INTS * 4,
                                       .count = count};
    return RK_OK;
}

/* The text after 'key': in the dictionary, NULL when the key is not there. */
static const char *npy_value(const char *dictionary, const char *key) {
    char quoted[32];
    for (int style = 0; style < 2; style++) {
        snprintf(quoted, sizeof quoted, style == 0 ? "'%s'" : "\"%s\"", key);
        const char *found = strstr(dictionary, quoted);
        if (found == NULL)
            continue;
        found += strlen(quoted);
        found += strspn(found, " ");
        if (*found == ':')
            return found + 1 + strspn(found + 1, " ");
    }
    return NULL;
}

/* "(123,)": one dimension. */
static bool read_npy_shape(const char *text, int64_t *count) {
    if (*text++ != '(')
        return false;
    text += strspn(text, " ");
    int64_t value = 0;
    if (*text < '0' || *text > '9')
        return false;
    for (; *text >= '0' && *text <= '9'; text++)
        if (__builtin_mul_overflow(value, (int64_t)10, &value) ||
            __builtin_add_overflow(value, (int64_t)(*text - '0'), &value))
            return false;
    text += strspn(text, "L "); /* Python 2 wrote 123L */
    if (*text++ != ',')
        return false;
    text += strspn(text, " ");
    *count = value;
    return *text == ')';
}

static enum rk_status read_npy(const char *path, const unsigned char *bytes, size_t length,
                               struct rk_token_header *header, struct rk_error *error) {
    if (length < 12)
        return rk_fail(error, RK_USAGE, "%s: begins like a .npy file but ends inside the header; it is cut short",
                       path);
    int major = bytes[6];
    if (major < 1 || major > 3)
        return rk_fail(error, RK_USAGE, "%s: .npy version %d.%d; versions 1.0 to 3.0 are known", path, major, bytes[7]);
    size_t prefix = major == 1 ? 10 : 12;
    size_t size = major == 1 ? (size_t)bytes[8] | (size_t)bytes[9] << 8 : little_32(bytes + 8);
    /* A one-dimensional array's header is about 118 bytes: what does not fit is not one of ours. */
    if (size > RK_TOKEN_LARGEST_HEADER - prefix)
        return rk_fail(error, RK_USAGE, "%s: the .npy header claims %zu bytes; that is no array of tokens", path, size);
    if (prefix + size > length)
        return rk_fail(error, RK_USAGE, "%s: ends inside the .npy header; it is cut short", path);
    char dictionary[RK_TOKEN_LARGEST_HEADER + 1];
    memcpy(dictionary, bytes + prefix, size);
    dictionary[size] = '\0';

    const char *descr = npy_value(dictionary, "descr"), *shape = npy_value(dictionary, "shape");
    if (descr == NULL || shape == NULL || strlen(dictionary) != size)
        return rk_fail(error, RK_USAGE, "%s: the .npy header has no 'descr' and 'shape'; the file is damaged", path);
    static const struct {
        const char *text;
        int token_bytes;
    } types[] = {{"<u2", 2}, {"<u4", 4}, {"<i4", 4}};
    int token_bytes = 0;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if ((descr[0] == '\'' || descr[0] == '"') && strncmp(descr + 1, types[i].text, 3) == 0 && descr[4] == descr[0])
            token_bytes = types[i].token_bytes;
    if (token_bytes == 0)
        return rk_fail(error, RK_USAGE,
                       "%s: .npy of dtype %.12s; tokens must be '<u2', '<u4' or '<i4' (numpy: array.astype('<u4'))",
                       path, descr);
    int64_t count = 0;
    if (!read_npy_shape(shape, &count))
        return rk_fail(error, RK_USAGE,
                       "%s: .npy of shape %.24s; tokens must have one dimension (numpy: array.reshape(-1))", path,
                       shape);
    *header = (struct rk_token_header){
        .format = RK_TOKEN_NPY, .token_bytes = token_bytes, .first_byte = (int64_t)(prefix + size), .count = count};
    return RK_OK;
}

enum rk_status rk_token_header_read(const char *path, const unsigned char *bytes, size_t length,
                                    struct rk_token_header *header, struct rk_error *error) {
    if (length >= NPY_MAGIC_LENGTH && memcmp(bytes, npy_magic, NPY_MAGIC_LENGTH) == 0)
        return read_npy(path, bytes, length, header, error);
    for (size_t kind = 0; kind < sizeof llmc_kinds / sizeof llmc_kinds[0]; kind++)
        if (length >= 8 && little_32(bytes) == llmc_kinds[kind].magic)
            return read_llmc(path, bytes, length, kind, header, error);
    if (length >= 7 && memcmp(bytes, "MMIDIDX", 7) == 0)
        return rk_fail(error, RK_USAGE,
                       "%s: is the index of a Megatron data set; give its .bin file, with the width of its tokens",
                       path);
    *header = (struct rk_token_header){.format = RK_TOKEN_RAW, .count = -1};
    return RK_OK;
}

size_t rk_token_header_write(enum rk_token_format format, int token_bytes, int64_t count, unsigned char *buffer) {
    if (format == RK_TOKEN_RAW)
        return 0;
    if (format == RK_TOKEN_LLMC) {
        size_t kind = token_bytes == llmc_kinds[0].token_bytes ? 0 : 1;
        memset(buffer, 0, LLMC_INTS * 4);
        put_little_32(buffer, llmc_kinds[kind].magic);
        put_little_32(buffer + 4, llmc_kinds[kind].version);
        put_little_32(buffer + 8, (uint32_t)count);
        return LLMC_INTS * 4;
    }
    /* NumPy asks for a header of a multiple of 64 bytes, padded with blanks, ended by a line feed. */
    memset(buffer, ' ', NPY_WRITTEN_SIZE);
    memcpy(buffer, npy_magic, NPY_MAGIC_LENGTH);
    buffer[6] = 1;
    buffer[7] = 0;
    buffer[8] = NPY_WRITTEN_SIZE - 10;
    buffer[9] = 0;
    char dictionary[NPY_WRITTEN_SIZE - 10];
    int used = snprintf(dictionary, sizeof dictionary, "{'descr': '<u%d', 'fortran_order': False, 'shape': (%lld,), }",
                        token_bytes, (long long)count);
    memcpy(buffer + 10, dictionary, (size_t)used);
    buffer[NPY_WRITTEN_SIZE - 1] = '\n';
    return NPY_WRITTEN_SIZE;
}
