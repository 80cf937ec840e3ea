/* config.json from a stranger: whatever the bytes, the reader refuses with a message or gives a model whose counts
 * hold. */
#include "model/count.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "fuzz_config: %s does not hold\n", what);
        abort();
    }
}

static void check_model(const struct rk_architecture *architecture) {
    struct rk_parameter_count count;
    struct rk_token_flops flops;
    struct rk_error error = {.text = ""};
    require(rk_architecture_check("fuzz", architecture, &error) == RK_OK, "a model that was read passes the check");
    rk_count_parameters(architecture, &count);
    require(count.total > 0 && count.total == count.routed + count.not_routed, "the total is the sum of its parts");
    require(count.total < INT64_MAX / 64, "64 bytes per parameter fit");
    require(count.active > 0 && count.active <= count.total, "active parameters are part of the total");
    require(count.active_without_embedding <= count.active && count.mtp_module >= 0, "no part is negative");
    require(count.attention_replicated <= count.attention, "the replicated part of attention is a part");
    for (int64_t sequence = 1; sequence <= 1000000; sequence *= 1000) {
        rk_count_token_flops(architecture, sequence, RK_COUNT_CAUSAL, &flops);
        require(isfinite(flops.total) && flops.total > 0, "FLOPs are finite");
        require(flops.attention_limited <= flops.attention_full, "a limited span is not longer");
    }
    enum rk_status status = rk_architecture_runnable(architecture, &error);
    require(status == RK_OK || (status == RK_USAGE && error.text[0] != '\0'), "a refusal to run has a reason");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct rk_architecture architecture;
    struct rk_error error = {.text = ""};
    struct rk_text warnings = {0};
    memset(&architecture, 0x5A, sizeof architecture);
    enum rk_status status =
        rk_architecture_parse("fuzz.json", (const char *)data, size, &architecture, &warnings, &error);
    if (status == RK_OK) {
        check_model(&architecture);
    } else {
        require(error.status == status && error.text[0] != '\0', "a refusal has a message");
    }
    rk_text_free(&warnings);
    return 0;
}
