#include "base/clock.h"
#include "base/hash.h"
#include "base/text.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* FIPS 180-4 examples and the NIST vectors of one million letters. */
static void standard_vectors(void **state) {
    (void)state;
    static const struct {
        const char *text, *hex;
    } vectors[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqr"
         "stu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    };
    char hex[RK_SHA256_HEX];
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        rk_sha256_hex(vectors[i].text, strlen(vectors[i].text), hex);
        assert_string_equal(hex, vectors[i].hex);
    }
    char *letters = malloc(1000000);
    memset(letters, 'a', 1000000);
    rk_sha256_hex(letters, 1000000, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(letters);
}

static void pieces_do_not_matter(void **state) {
    (void)state;
    unsigned char data[300];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 31);
    for (size_t length = 0; length <= sizeof data; length++) {
        char whole[RK_SHA256_HEX], parts[RK_SHA256_HEX];
        rk_sha256_hex(data, length, whole);
        for (size_t step = 1; step < 131; step += 13) {
            struct rk_sha256 hash;
            rk_sha256_begin(&hash);
            for (size_t at = 0; at < length; at += step)
                rk_sha256_add(&hash, data + at, length - at < step ? length - at : step);
            rk_sha256_end_hex(&hash, parts);
            assert_string_equal(whole, parts);
        }
    }
}

static void files_are_hashed(void **state) {
    (void)state;
    struct rk_error error;
    char hex[RK_SHA256_HEX], path[] = "/tmp/reckon-test-XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    assert_ok(rk_write_file(path, "abc", 3, &error), error);
    assert_ok(rk_sha256_file(path, hex, &error), error);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    unlink(path);
    assert_fails(rk_sha256_file(path, hex, &error), RK_USAGE, error, path);
    assert_fails(rk_sha256_file("/tmp", hex, &error), RK_ERROR, error, "/tmp");
}

static void clocks(void **state) {
    (void)state;
    char text[32];
    assert_string_equal(rk_clock_utc_at(0, text, sizeof text), "1970-01-01T00:00:00Z");
    assert_string_equal(rk_clock_utc_at(1795980245, text, sizeof text), "2026-11-29T19:24:05Z");
    assert_string_equal(rk_clock_utc_at(951782400, text, sizeof text), "2000-02-29T00:00:00Z");
    assert_string_equal(rk_clock_utc_at(0, text, 5), "");
    assert_int_equal(strlen(rk_clock_utc(text, sizeof text)), 20);
    double start = rk_clock_seconds();
    int64_t nanoseconds = rk_clock_nanoseconds();
    usleep(2000);
    assert_true(rk_clock_seconds() - start >= 0.002);
    assert_true(rk_clock_nanoseconds() - nanoseconds >= 2000000);
    assert_true(rk_clock_wall() > 1.6e9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(standard_vectors),
        cmocka_unit_test(pieces_do_not_matter),
        cmocka_unit_test(files_are_hashed),
        cmocka_unit_test(clocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
