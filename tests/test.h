/* What every cmocka program includes, in the order that cmocka asks for. */
#ifndef RK_TESTS_TEST_H
#define RK_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/status.h"

/* The status is the wanted one, and the message (for failures) holds `part`. */
#define assert_fails(call, wanted, error, part)                                                                        \
    do {                                                                                                               \
        (error).text[0] = '\0';                                                                                        \
        assert_int_equal((call), (wanted));                                                                            \
        if (strstr((error).text, (part)) == NULL)                                                                      \
            fail_msg("the message is '%s', without '%s'", (error).text, (part));                                       \
    } while (0)

#define assert_ok(call, error)                                                                                         \
    do {                                                                                                               \
        (error).text[0] = '\0';                                                                                        \
        enum rk_status assert_ok_status = (call);                                                                      \
        if (assert_ok_status != RK_OK)                                                                                 \
            fail_msg("status %d: %s", (int)assert_ok_status, (error).text);                                            \
    } while (0)

#endif
