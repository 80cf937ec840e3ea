/* Any bytes as a plan: refused with a message, or a plan that is written back and reads to the same bytes. */
#include "model/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct rk_plan *plan = NULL, *again = NULL;
    struct rk_text first = {0}, second = {0};
    struct rk_error error = {0};
    if (rk_plan_read("fuzz", (const char *)data, size, &plan, &error) != RK_OK) {
        if (error.text[0] == '\0')
            abort();
        return 0;
    }
    if (rk_plan_write(plan, &first, &error) != RK_OK ||
        rk_plan_read("fuzz", first.data, first.length, &again, &error) != RK_OK ||
        rk_plan_write(again, &second, &error) != RK_OK || first.length != second.length ||
        memcmp(first.data, second.data, first.length) != 0) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
    rk_plan_free(plan);
    rk_plan_free(again);
    rk_text_free(&first);
    rk_text_free(&second);
    return 0;
}
