#include "base/text.h"
#include "executor/token_file.h"
#include "executor/token_header.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/reckon-test-XXXXXX";

static const char *in_folder(const char *name) {
    static char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static const char *write_bytes(const char *name, const void *bytes, size_t length) {
    struct rk_error error;
    const char *path = in_folder(name);
    assert_ok(rk_write_file(path, bytes, length, &error), error);
    return path;
}

static const struct {
    const char *name;
    enum rk_token_format format;
    int token_bytes;
} kinds[] = {
    {"raw.u16", RK_TOKEN_RAW, 2},    {"raw.u32", RK_TOKEN_RAW, 4}, {"llm.bin", RK_TOKEN_LLMC, 2},
    {"llama.bin", RK_TOKEN_LLMC, 4}, {"a.npy", RK_TOKEN_NPY, 2},   {"b.npy", RK_TOKEN_NPY, 4},
};

static void every_format_comes_back(void **state) {
    (void)state;
    enum { N = 30011 };
    int32_t *tokens = malloc(N * sizeof *tokens), *back = malloc(N * sizeof *back);
    struct rk_error error;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        const char *path = in_folder(kinds[k].name);
        struct rk_token_writer writer;
        struct rk_token_file file;
        for (int i = 0; i < N; i++)
            tokens[i] = kinds[k].token_bytes == 2 ? i * 7 % 65536 : (int32_t)((uint32_t)i * 2654435761U >> 1);
        assert_ok(rk_token_writer_open(path, kinds[k].format, kinds[k].token_bytes, &writer, &error), error);
        assert_ok(rk_token_writer_add(&writer, tokens, 10, &error), error);
        assert_ok(rk_token_writer_add(&writer, tokens + 10, N - 10, &error), error);
        assert_int_not_equal(access(path, F_OK), 0);
        assert_ok(rk_token_writer_commit(&writer, &error), error);
        assert_ok(rk_token_file_open(path, 0, 0, &file, &error), error);
        assert_int_equal(file.format, kinds[k].format);
        assert_int_equal(file.token_bytes, kinds[k].token_bytes);
        assert_int_equal(file.count, N);
        assert_ok(rk_token_file_read(&file, 0, N, back, &error), error);
        assert_memory_equal(back, tokens, N * sizeof *tokens);
        assert_ok(rk_token_file_read(&file, N - 3, 3, back, &error), error);
        assert_memory_equal(back, tokens + N - 3, 3 * sizeof *tokens);
        assert_ok(rk_token_file_read(&file, N, 0, back, &error), error);
        rk_token_file_close(&file);
        rk_token_file_close(&file);
        unlink(path);
    }
    free(tokens);
    free(back);
}

static void headers_are_those_of_others(void **state) {
    (void)state;
    unsigned char header[RK_TOKEN_LARGEST_HEADER];
    assert_int_equal(rk_token_header_write(RK_TOKEN_LLMC, 2, 0x01020304, header), 1024);
    assert_memory_equal(header, "\x88\xD8\x34\x01\x01\0\0\0\x04\x03\x02\x01\0\0\0\0", 16);
    assert_int_equal(rk_token_header_write(RK_TOKEN_LLMC, 4, 5, header), 1024);
    assert_memory_equal(header, "\xA1\xD9\x34\x01\x07\0\0\0\x05\0\0\0", 12);
    assert_int_equal(rk_token_header_write(RK_TOKEN_NPY, 4, 9223372036854775807, header), 128);
    assert_memory_equal(
        header, "\x93NUMPY\x01\0\x76\0{'descr': '<u4', 'fortran_order': False, 'shape': (9223372036854775807,), }",
        10 + 75);
    assert_int_equal(header[127], '\n');
    assert_int_equal(rk_token_header_write(RK_TOKEN_RAW, 2, 1, header), 0);
}

/* A .npy file with this dictionary, version and number of data bytes. */
static const char *write_npy(int major, const char *dictionary, size_t claimed, size_t data_bytes) {
    unsigned char bytes[2048] = {0};
    size_t prefix = major == 1 ? 10 : 12, length = strlen(dictionary);
    memcpy(bytes, "\x93NUMPY", 6);
    bytes[6] = (unsigned char)major;
    for (size_t i = 0; i < prefix - 8; i++)
        bytes[8 + i] = (unsigned char)(claimed >> (8 * i));
    memcpy(bytes + prefix, dictionary, length);
    return write_bytes("x.npy", bytes, prefix + length + data_bytes);
}

static void npy_variants(void **state) {
    (void)state;
    static const struct {
        int major;
        const char *dictionary;
        size_t data_bytes;
    } good[] = {
        {1, "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }\n", 6},
        {2, "{\"descr\": \"<i4\", \"shape\": (3,)}", 12},
        {3, "{'shape':( 3 , ),'descr':'<u4'}", 12},
        {1, "{'descr': '<u2', 'fortran_order': True, 'shape': (3L,), }", 6},
    };
    static const struct {
        int major;
        const char *dictionary, *message;
    } bad[] = {
        {1, "{'descr': '>u2', 'shape': (3,)}", "dtype '>u2'"},
        {1, "{'descr': '<f4', 'shape': (3,)}", "dtype '<f4'"},
        {1, "{'descr': '<i8', 'shape': (3,)}", "dtype '<i8'"},
        {1, "{'descr': '|u1', 'shape': (3,)}", "dtype '|u1'"},
        {1, "{'descr': '<u2', 'shape': (3, 1)}", "one dimension"},
        {1, "{'descr': '<u2', 'shape': ()}", "one dimension"},
        {1, "{'descr': '<u2', 'shape': (-3,)}", "one dimension"},
        {1, "{'descr': '<u2', 'shape': (3)}", "one dimension"},
        {1, "{'descr': '<u2', 'shape': (99999999999999999999,)}", "one dimension"},
        {1, "{'descr': '<u2', 'shape': (9223372036854775807,)}", "cut short"},
        {1, "{'descr': '<u2', 'shape': (4,)}", "cut short"},
        {1, "{'descr': '<u2', 'shape': (2,)}", "damaged"},
        {1, "{'descr': '<u2'}", "no 'descr' and 'shape'"},
        {1, "{'shape': (3,)}", "no 'descr' and 'shape'"},
        {1, "", "no 'descr' and 'shape'"},
        {1, "{'descr': [('a', '<u2')], 'shape': (3,)}", "dtype"},
        {4, "{'descr': '<u2', 'shape': (3,)}", "version 4.0"},
        {0, "{'descr': '<u2', 'shape': (3,)}", "version 0.0"},
        {1, "{'descr': '<u2', 'shape': (3", "one dimension"},
        {1, "{'descr': '<u2', 'shape':", "one dimension"},
        {1, "{'descr':", "no 'descr' and 'shape'"},
    };
    struct rk_token_file file;
    struct rk_error error;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const char *path = write_npy(good[i].major, good[i].dictionary, strlen(good[i].dictionary), good[i].data_bytes);
        assert_ok(rk_token_file_open(path, 0, 0, &file, &error), error);
        assert_int_equal(file.count, 3);
        rk_token_file_close(&file);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *path = write_npy(bad[i].major, bad[i].dictionary, strlen(bad[i].dictionary), 6);
        assert_fails(rk_token_file_open(path, 0, 0, &file, &error), RK_USAGE, error, bad[i].message);
        assert_non_null(strstr(error.text, "x.npy"));
    }
    const char *path = write_npy(1, "{'descr': '<u2', 'shape': (3,)}", 60000, 6);
    assert_fails(rk_token_file_open(path, 0, 0, &file, &error), RK_USAGE, error, "claims 60000");
    path = write_npy(2, "{'descr': '<u2', 'shape': (3,)}", 4294967295, 6);
    assert_fails(rk_token_file_open(path, 0, 0, &file, &error), RK_USAGE, error, "claims 4294967295");
    path = write_npy(1, "{'descr': '<u2', 'shape': (3,)}", 500, 6);
    assert_fails(rk_token_file_open(path, 0, 0, &file, &error), RK_USAGE, error, "ends inside the .npy header");
    path = write_bytes("x.npy", "\x93NUMPY\x01", 7);
    assert_fails(rk_token_file_open(path, 0, 0, &file, &error), RK_USAGE, error, "ends inside the header");
    unlink(path);
}

static void put(unsigned char *bytes, uint32_t value) {
    for (int i = 0; i < 4; i++)
        bytes[i] = (unsigned char)(value >> (8 * i));
}

static void llmc_variants(void **state) {
    (void)state;
    static const struct {
        uint32_t magic, version, count;
        size_t length;
        int given;
        const char *message;
    } bad[] = {
        {20240520, 2, 3, 1030, 0, "version 2"},          {20240520, 1, 3, 500, 0, "ends inside the header"},
        {20240520, 1, 4, 1030, 0, "cut short"},          {20240520, 1, 2, 1030, 0, "damaged"},
        {20240520, 1, 0, 1024, 0, "no tokens"},          {20240520, 1, 0xFFFFFFFF, 1030, 0, "damaged"},
        {20240520, 1, 0x7FFFFFFF, 1030, 0, "cut short"}, {20240520, 1, 3, 1030, 4, "tokens of 2 bytes"},
        {20240801, 1, 3, 1036, 0, "version 1"},          {20240801, 7, 3, 1030, 0, "cut short"},
    };
    unsigned char bytes[1100] = {0};
    struct rk_token_file file;
    struct rk_error error;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        put(bytes, bad[i].magic);
        put(bytes + 4, bad[i].version);
        put(bytes + 8, bad[i].count);
        const char *path = write_bytes("x.bin", bytes, bad[i].length);
        assert_fails(rk_token_file_open(path, bad[i].given, 0, &file, &error), RK_USAGE, error, bad[i].message);
    }
    unlink(in_folder("x.bin"));
}

static void raw_width_is_given_or_named(void **state) {
    (void)state;
    unsigned char bytes[4096];
    struct rk_token_file file;
    struct rk_error error;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 37 % 251);
    static const struct {
        const char *name;
        int given, width;
    } good[] = {{"x.bin", 0, 2}, {"x.u16", 0, 2}, {"x.npy", 0, 2}, {"x.u32", 0, 4},
                {"x", 2, 2},     {"x.txt", 4, 4}, {"x.bin", 4, 4}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const char *path = write_bytes(good[i].name, bytes, sizeof bytes);
        assert_ok(rk_token_file_open(path, good[i].given, 0, &file, &error), error);
        assert_int_equal(file.token_bytes, good[i].width);
        assert_int_equal(file.count, (int)sizeof bytes / good[i].width);
        rk_token_file_close(&file);
        unlink(path);
    }
    const char *path = write_bytes("x.txt", bytes, sizeof bytes);
    assert_fails(rk_token_file_open(path, 0, 0, &file, &error), RK_USAGE, error, "--token-bytes 2 or 4");
    assert_fails(rk_token_file_open(write_bytes("x.txt", bytes, 1023), 4, 0, &file, &error), RK_USAGE, error,
                 "no multiple");
    assert_fails(rk_token_file_open(write_bytes("x.txt", bytes, 0), 4, 0, &file, &error), RK_USAGE, error, "no tokens");
    assert_fails(rk_token_file_open(write_bytes("x.txt", "MMIDIDX\0\0", 9), 2, 0, &file, &error), RK_USAGE, error,
                 "Megatron");
    unlink(in_folder("x.txt"));
    /* 4-byte tokens under a name that says 2. */
    for (size_t i = 0; i < sizeof bytes; i += 4)
        put(bytes + i, (uint32_t)(i * 7919 % 100000));
    path = write_bytes("x.bin", bytes, sizeof bytes);
    assert_fails(rk_token_file_open(path, 0, 0, &file, &error), RK_USAGE, error, "--token-bytes 4");
    assert_ok(rk_token_file_open(path, 2, 0, &file, &error), error);
    rk_token_file_close(&file);
    unlink(path);
}

static void tokens_are_checked(void **state) {
    (void)state;
    struct rk_token_file file;
    struct rk_error error;
    int32_t tokens[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    unsigned char bytes[16];
    for (uint32_t i = 0; i < 4; i++)
        put(bytes + 4 * i, i == 2 ? 0x80000000U : 100 + i);
    const char *path = write_bytes("x.u32", bytes, sizeof bytes);
    assert_ok(rk_token_file_open(path, 0, 0, &file, &error), error);
    assert_fails(rk_token_file_read(&file, 1, 2, tokens, &error), RK_USAGE, error, "token 2 is 2147483648");
    assert_ok(rk_token_file_read(&file, 0, 2, tokens, &error), error);
    assert_int_equal(tokens[1], 101);
    static const int64_t outside[][2] = {{-1, 1}, {0, 5}, {4, 1}, {5, 0}, {1, -1}, {INT64_MAX, 1}, {1, INT64_MAX}};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++)
        assert_fails(rk_token_file_read(&file, outside[i][0], outside[i][1], tokens, &error), RK_USAGE, error,
                     "holds 4");
    rk_token_file_close(&file);
    assert_ok(rk_token_file_open(path, 0, 101, &file, &error), error);
    assert_fails(rk_token_file_read(&file, 0, 2, tokens, &error), RK_USAGE, error,
                 "token 1 is 101, but the vocabulary has 101");
    rk_token_file_close(&file);
    unlink(path);
}

static void shortened_while_open(void **state) {
    (void)state;
    struct rk_token_file file;
    struct rk_error error;
    int32_t tokens[100];
    char bytes[200] = {0};
    const char *path = write_bytes("x.u16", bytes, sizeof bytes);
    assert_ok(rk_token_file_open(path, 0, 0, &file, &error), error);
    assert_int_equal(truncate(path, 100), 0);
    assert_ok(rk_token_file_read(&file, 0, 50, tokens, &error), error);
    assert_fails(rk_token_file_read(&file, 0, 100, tokens, &error), RK_ERROR, error, "became shorter");
    rk_token_file_close(&file);
    unlink(path);
}

static void what_is_no_file_is_refused(void **state) {
    (void)state;
    struct rk_token_file file;
    struct rk_error error;
    const char *pipe = in_folder("pipe");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_fails(rk_token_file_open(pipe, 2, 0, &file, &error), RK_USAGE, error, "not a plain file");
    unlink(pipe);
    assert_fails(rk_token_file_open(folder, 2, 0, &file, &error), RK_USAGE, error, "not a plain file");
    assert_fails(rk_token_file_open("/nonexistent", 2, 0, &file, &error), RK_USAGE, error, "cannot open");
    assert_fails(rk_token_file_open("/dev/zero", 2, 0, &file, &error), RK_USAGE, error, "not a plain file");
}

static void writer_refuses(void **state) {
    (void)state;
    struct rk_token_writer writer;
    struct rk_error error;
    const char *path = in_folder("x.u16");
    static const int32_t large[] = {1, 65536}, negative[] = {-1};
    assert_ok(rk_token_writer_open(path, RK_TOKEN_RAW, 2, &writer, &error), error);
    assert_fails(rk_token_writer_add(&writer, large, 2, &error), RK_USAGE, error, "65536 does not fit");
    rk_token_writer_abandon(&writer);
    assert_ok(rk_token_writer_open(path, RK_TOKEN_RAW, 4, &writer, &error), error);
    assert_fails(rk_token_writer_add(&writer, negative, 1, &error), RK_USAGE, error, "-1 does not fit");
    rk_token_writer_abandon(&writer);
    assert_ok(rk_token_writer_open(path, RK_TOKEN_RAW, 4, &writer, &error), error);
    assert_fails(rk_token_writer_commit(&writer, &error), RK_USAGE, error, "no tokens");
    assert_fails(rk_token_writer_open("/dev/null", RK_TOKEN_NPY, 2, &writer, &error), RK_USAGE, error, "plain file");
    assert_ok(rk_token_writer_open("/dev/full", RK_TOKEN_RAW, 2, &writer, &error), error);
    assert_ok(rk_token_writer_add(&writer, large, 1, &error), error);
    assert_fails(rk_token_writer_commit(&writer, &error), RK_ERROR, error, "/dev/full");
    assert_int_not_equal(access(path, F_OK), 0);
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_comes_back),
        cmocka_unit_test(headers_are_those_of_others),
        cmocka_unit_test(npy_variants),
        cmocka_unit_test(llmc_variants),
        cmocka_unit_test(raw_width_is_given_or_named),
        cmocka_unit_test(tokens_are_checked),
        cmocka_unit_test(shortened_while_open),
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test(writer_refuses),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
