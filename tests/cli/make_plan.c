/* Writes the plan of a given candidate on standard output, so that tests of `run` need no calibration:
 *     make_plan CONFIG.json key=value...
 * with pp, virtual, ep, d, tokens, seq, batch, recompute, offload, capacity, type, backend. Prices come from one flat
 * rate. */
#include "model/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct wishes {
    long long pp, virtual_stages, ep, d, tokens, seq, batch, offload;
    double capacity;
    char recompute[16], type[8], backend[8];
};

static enum rk_status flat_price(void *context, const struct rk_op_shape *shape, const struct rk_cost_place *place,
                                 struct rk_cost *cost, struct rk_error *error) {
    (void)context;
    (void)place;
    (void)error;
    *cost = (struct rk_cost){.seconds = 1e-6 + rk_op_flops(shape) / 2e11 + rk_op_bytes(shape) / 2e11,
                             .relative_uncertainty = 0.5,
                             .origin = RK_ORIGIN_SPECIFICATION,
                             .source = "a flat rate"};
    return RK_OK;
}

static bool read_wish(const char *word, struct wishes *wishes) {
    const struct {
        const char *key;
        long long *value;
    } numbers[] = {{"pp", &wishes->pp},       {"virtual", &wishes->virtual_stages}, {"ep", &wishes->ep},
                   {"d", &wishes->d},         {"tokens", &wishes->tokens},          {"seq", &wishes->seq},
                   {"batch", &wishes->batch}, {"offload", &wishes->offload}};
    const char *equals = strchr(word, '=');
    size_t length = equals != NULL ? (size_t)(equals - word) : 0;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (length == strlen(numbers[i].key) && strncmp(word, numbers[i].key, length) == 0) {
            *numbers[i].value = atoll(equals + 1);
            return true;
        }
    return sscanf(word, "capacity=%lf", &wishes->capacity) == 1 ||
           sscanf(word, "recompute=%15s", wishes->recompute) == 1 || sscanf(word, "type=%7s", wishes->type) == 1 ||
           sscanf(word, "backend=%7s", wishes->backend) == 1;
}

static void make_candidate(const struct wishes *wishes, const struct rk_architecture *architecture,
                           struct rk_candidate *candidate) {
    *candidate = (struct rk_candidate){
        .pipeline = (int32_t)wishes->pp,
        .virtual_stages = (int32_t)wishes->virtual_stages,
        .expert_parallel = (int32_t)wishes->ep,
        .data_parallel = (int32_t)wishes->d,
        .micro_batch_tokens = wishes->tokens,
        .sequence = wishes->seq,
        .global_batch_tokens = wishes->batch,
        .recompute = rk_recompute_from_name(wishes->recompute),
        .offload_percent = (int32_t)wishes->offload,
        .type = strcmp(wishes->type, "bf16") == 0 ? RK_BF16 : RK_F32,
        .backend = strcmp(wishes->backend, "cuda") == 0 ? RK_BACKEND_CUDA : RK_BACKEND_CPU,
        .capacity_factor = wishes->capacity,
    };
    rk_candidate_defaults(candidate);
    rk_candidate_even_chunks(architecture, candidate);
}

static struct rk_machine make_machine(const struct rk_candidate *candidate) {
    struct rk_figure rate = {1e9, 0.5, RK_ORIGIN_SPECIFICATION, "a flat rate"};
    struct rk_machine machine = {.name = "a flat rate",
                                 .backend = candidate->backend,
                                 .devices_per_host = 2,
                                 .shared_devices = candidate->backend == RK_BACKEND_CPU,
                                 .serial_streams = candidate->backend == RK_BACKEND_CPU,
                                 .memory_bytes = (int64_t)1 << 36,
                                 .host_memory_bytes = (int64_t)1 << 36,
                                 .d2h = rate,
                                 .h2d = rate};
    machine.both_directions = (struct rk_figure){1, 0, RK_ORIGIN_SPECIFICATION, "a flat rate"};
    return machine;
}

int main(int argc, char **argv) {
    struct wishes wishes = {.pp = 1,
                            .virtual_stages = 1,
                            .ep = 1,
                            .d = 1,
                            .tokens = 64,
                            .seq = 32,
                            .batch = 512,
                            .capacity = 2,
                            .recompute = "none",
                            .type = "f32",
                            .backend = "cpu"};
    struct rk_error error = {0};
    struct rk_architecture architecture;
    struct rk_candidate candidate;
    struct rk_plan *plan = NULL;
    struct rk_text text = {0};
    char *config = NULL;
    size_t length = 0;
    for (int i = 2; i < argc; i++)
        if (!read_wish(argv[i], &wishes)) {
            fprintf(stderr, "make_plan: what is %s?\n", argv[i]);
            return 2;
        }
    if (argc < 2 || rk_read_file(argv[1], 1 << 20, &config, &length, &error) != RK_OK ||
        rk_architecture_read_file(argv[1], &architecture, NULL, &error) != RK_OK)
        goto failed;
    make_candidate(&wishes, &architecture, &candidate);
    struct rk_machine machine = make_machine(&candidate);
    struct rk_cost_source costs = {flat_price, NULL};
    if (rk_plan_make(&architecture, config, &candidate, &machine, &costs, NULL, &plan, &error) != RK_OK ||
        rk_plan_write(plan, &text, &error) != RK_OK)
        goto failed;
    fwrite(text.data, 1, text.length, stdout);
    rk_text_free(&text);
    rk_plan_free(plan);
    free(config);
    return 0;
failed:
    fprintf(stderr, "make_plan: %s\n", error.text);
    return 1;
}
