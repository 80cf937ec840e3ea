/* Step programs of many architectures and candidates: checked, complete, and alike where layouts must not matter. */
#include "step_samples.h"

#include "model/count.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static void check_program(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                          int32_t stage) {
    struct rk_program *program = rk_sample_lower(architecture, candidate, stage);
    struct rk_error error = {.text = ""};
    if (rk_program_check(program, &error) != RK_OK)
        fail_msg("%s: %s", rk_sample_text(architecture, candidate, stage), error.text);
    rk_program_free(program);
}

static void every_program_of_the_grid_passes_the_check(void **state) {
    (void)state;
    assert_true(rk_sample_grid(check_program) > 1000);
}

/* ---- completeness ---- */

static bool is_backward(const struct rk_segment *segment) {
    return strstr(segment->name, "block backward") != NULL;
}

static bool is_forward(const struct rk_segment *segment) {
    return strstr(segment->name, "block forward") != NULL;
}

/* Ops of a kind in a segment, of a phase or (RK_PHASE_COUNT) of all. */
static int count_ops(const struct rk_program *program, const struct rk_segment *segment, enum rk_op_kind kind,
                     enum rk_phase phase) {
    int count = 0;
    for (size_t i = 0; i < segment->op_count; i++) {
        const struct rk_op *op = &program->ops[segment->first_op + i];
        count += op->shape.kind == kind && (phase == RK_PHASE_COUNT || op->phase == phase);
    }
    return count;
}

/* Ops of a segment that touch a buffer with that access, in any phase but recomputation or only in it. */
static int count_touches(const struct rk_program *program, const struct rk_segment *segment, uint32_t buffer,
                         enum rk_access access, bool recomputed) {
    int count = 0;
    for (size_t i = 0; i < segment->op_count; i++) {
        const struct rk_op *op = &program->ops[segment->first_op + i];
        for (int o = 0; o < RK_OP_OPERANDS; o++)
            count += op->operand[o].buffer == buffer && rk_op_operand_access(op->shape.kind, o) == access &&
                     (op->phase == RK_PHASE_RECOMPUTE) == recomputed;
    }
    return count;
}

static bool layer_has_tensor(const struct rk_program *program, const struct rk_tensor *tensor, enum rk_block kind) {
    for (int32_t i = 0; i < program->layer_count; i++)
        if (program->layers[i] == tensor->layer)
            return program->layer_kinds[i] == (uint8_t)kind;
    return false;
}

static uint32_t find_buffer(const struct rk_program *program, const char *name) {
    for (uint32_t i = 0; i < program->buffer_count; i++)
        if (strcmp(program->buffers[i].name, name) == 0)
            return i;
    return RK_NO_BUFFER;
}

/* A block's forward reads every weight once; its backward accumulates every gradient once, and reads every weight once:
 * for the gradient of the input, as gain, or again when it recomputes. */
static void check_parameters_of_block(const struct rk_program *program, const struct rk_segment *segment,
                                      enum rk_block kind) {
    for (size_t t = 0; t < program->tensor_count; t++) {
        const struct rk_tensor *tensor = &program->tensors[t];
        char name[64];
        if (tensor->layer < 0 || tensor->buffer == RK_NO_BUFFER || !layer_has_tensor(program, tensor, kind))
            continue;
        int reads = count_touches(program, segment, tensor->buffer, RK_ACCESS_READ, false);
        assert_int_equal(reads, is_forward(segment) || tensor->trained ? 1 : 0);
        if (!tensor->trained)
            continue;
        snprintf(name, sizeof name, "%s.gradient", program->buffers[tensor->buffer].name);
        uint32_t gradient = find_buffer(program, name);
        assert_int_not_equal(gradient, RK_NO_BUFFER);
        assert_int_equal(count_touches(program, segment, gradient, RK_ACCESS_ACCUMULATE, false), is_backward(segment));
    }
}

static void check_block_ops(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                            int32_t stage) {
    struct rk_program *program = rk_sample_lower(architecture, candidate, stage);
    int latents = architecture->attention == RK_ATTENTION_MLA ? 1 + (architecture->q_lora_rank > 0) : 0;
    bool block = candidate->recompute == RK_RECOMPUTE_BLOCK, whole = candidate->recompute == RK_RECOMPUTE_NONE;
    for (size_t s = 0; s < program->segment_count; s++) {
        const struct rk_segment *segment = &program->segments[s];
        bool moe = strncmp(segment->name, "moe", 3) == 0;
        if (!is_backward(segment) && !is_forward(segment))
            continue;
        check_parameters_of_block(program, segment, moe ? RK_BLOCK_MOE : RK_BLOCK_DENSE);
        enum rk_phase phase = is_backward(segment) ? RK_PHASE_RECOMPUTE : RK_PHASE_FORWARD;
        bool runs_forward = is_forward(segment);
        assert_int_equal(count_ops(program, segment, RK_OP_ATTENTION_FORWARD, phase), runs_forward || !whole);
        assert_int_equal(count_ops(program, segment, RK_OP_ROPE_FORWARD, phase), runs_forward || !whole);
        assert_int_equal(count_ops(program, segment, RK_OP_RMSNORM_FORWARD, phase),
                         runs_forward || block ? 2 + latents : (!whole ? 1 + latents : 0));
        /* Routes are decided once; recomputation sends rows again, but sums nothing. */
        assert_int_equal(count_ops(program, segment, RK_OP_ROUTE_FORWARD, RK_PHASE_COUNT), moe && runs_forward);
        assert_int_equal(count_ops(program, segment, RK_OP_ROUTE_MAP, RK_PHASE_COUNT), moe && runs_forward);
        assert_int_equal(count_ops(program, segment, RK_OP_COUNT_EXCHANGE, RK_PHASE_COUNT), moe && runs_forward);
        assert_int_equal(count_ops(program, segment, RK_OP_COMBINE, RK_PHASE_COUNT), moe);
        assert_int_equal(count_ops(program, segment, RK_OP_DISPATCH, RK_PHASE_COUNT),
                         moe ? 1 + (is_backward(segment) && block) : 0);
        assert_int_equal(count_ops(program, segment, RK_OP_ROUTE_BACKWARD, RK_PHASE_COUNT), moe && !runs_forward);
    }
    rk_program_free(program);
}

static void blocks_hold_every_op_once(void **state) {
    (void)state;
    rk_sample_grid(check_block_ops);
}

/* The exact number of ops of each block without recompute and offload, by stream. */
static void op_counts_of_blocks(void **state) {
    static const struct {
        enum rk_sample sample;
        const char *segment;
        int compute, exchange;
    } rows[] = {
        {RK_SAMPLE_DENSE, "dense block forward", 9, 0}, {RK_SAMPLE_DENSE, "dense block backward", 13, 0},
        {RK_SAMPLE_MOE, "moe block forward", 12, 3},    {RK_SAMPLE_MOE, "moe block backward", 16, 2},
        {RK_SAMPLE_MIXED, "moe block forward", 15, 3},  {RK_SAMPLE_MIXED, "moe block backward", 21, 2},
    };
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        struct rk_architecture architecture = rk_sample_architecture(rows[r].sample);
        struct rk_candidate candidate = rk_sample_candidate(&architecture);
        struct rk_program *program = rk_sample_lower(&architecture, &candidate, 0);
        int compute = 0, exchange = 0;
        for (size_t s = 0; s < program->segment_count; s++) {
            const struct rk_segment *segment = &program->segments[s];
            for (size_t i = 0; strcmp(segment->name, rows[r].segment) == 0 && i < segment->op_count; i++) {
                compute += program->ops[segment->first_op + i].stream == RK_STREAM_COMPUTE;
                exchange += program->ops[segment->first_op + i].stream == RK_STREAM_EXCHANGE;
            }
        }
        assert_int_equal(compute, rows[r].compute);
        assert_int_equal(exchange, rows[r].exchange);
        rk_program_free(program);
    }
}

/* ---- what a stage's schedule holds ---- */

static int64_t visits_of(const struct rk_program *program, const char *name) {
    int64_t count = 0;
    for (size_t v = 0; v < program->visit_count; v++)
        count += strncmp(program->segments[program->schedule[v].segment].name, name, strlen(name)) == 0;
    return count;
}

static void check_schedule(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                           int32_t stage) {
    struct rk_program *program = rk_sample_lower(architecture, candidate, stage);
    int64_t micro_batches = rk_candidate_micro_batches(candidate), virtual_stages = candidate->virtual_stages;
    bool first = stage == 0, last = stage == candidate->pipeline - 1;
    int64_t blocks = program->layer_count * micro_batches;
    assert_int_equal(visits_of(program, "moe block forward") + visits_of(program, "dense block forward"), blocks);
    assert_int_equal(visits_of(program, "moe block backward") + visits_of(program, "dense block backward"), blocks);
    assert_int_equal(visits_of(program, "loss"), last ? micro_batches : 0);
    assert_int_equal(visits_of(program, "embedding forward"), first ? micro_batches : 0);
    assert_int_equal(visits_of(program, "embedding backward"), first ? micro_batches : 0);
    assert_int_equal(visits_of(program, "receive activations"), (virtual_stages - first) * micro_batches);
    assert_int_equal(visits_of(program, "send gradients"), (virtual_stages - first) * micro_batches);
    assert_int_equal(visits_of(program, "send activations"), (virtual_stages - last) * micro_batches);
    assert_int_equal(visits_of(program, "receive gradients"), (virtual_stages - last) * micro_batches);
    int64_t reduced = 0;
    for (size_t b = 0; b < program->bucket_count; b++)
        reduced += (program->buckets[b].expert ? program->expert.replicas : program->dense.replicas) > 1;
    assert_int_equal(visits_of(program, "reduce bucket"), reduced);
    assert_int_equal(program->windows, micro_batches * candidate->data_parallel);
    rk_program_free(program);
}

static void schedules_visit_everything(void **state) {
    (void)state;
    rk_sample_grid(check_schedule);
}

/* A bucket is reduced after the last visit that accumulates into it, and one that is complete early before the end. */
static void buckets_are_reduced_when_complete(void **state) {
    struct rk_architecture architecture = rk_sample_architecture(RK_SAMPLE_MOE);
    struct rk_candidate candidate = rk_sample_candidate(&architecture);
    (void)state;
    rk_sample_layout(&architecture, &candidate, 1, 1, 1, 2, 2);
    struct rk_program *program = rk_sample_lower(&architecture, &candidate, 0);
    size_t first_reduction = SIZE_MAX, last_backward = 0;
    for (size_t v = 0; v < program->visit_count; v++) {
        const struct rk_segment *segment = &program->segments[program->schedule[v].segment];
        if (strncmp(segment->name, "reduce bucket", 13) == 0 && v < first_reduction)
            first_reduction = v;
        if (is_backward(segment))
            last_backward = v;
    }
    assert_true(first_reduction < last_backward);
    rk_program_free(program);
}

/* ---- parameters ---- */

static int64_t elements_of(const struct rk_tensor *tensor) {
    int64_t elements = 1;
    for (int32_t i = 0; i < tensor->rank; i++)
        elements *= tensor->dim[i];
    return elements;
}

/* Over all stages and expert ranks the tensors are the architecture's parameters. */
static void check_parameter_count(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                                  int32_t stage) {
    struct rk_parameter_count count;
    int64_t sum = 0;
    if (stage != 0)
        return;
    rk_count_parameters(architecture, &count);
    for (int32_t s = 0; s < candidate->pipeline; s++) {
        struct rk_program *program = rk_sample_lower(architecture, candidate, s);
        for (size_t i = 0; i < program->tensor_count; i++) {
            const struct rk_tensor *tensor = &program->tensors[i];
            if (!tensor->tied_copy)
                sum += elements_of(tensor) * (tensor->expert ? candidate->expert_parallel : 1);
        }
        rk_program_free(program);
    }
    assert_int_equal(sum, count.total);
}

static void tensors_are_the_counted_parameters(void **state) {
    (void)state;
    rk_sample_grid(check_parameter_count);
}

/* Published models, planned or run: whole on one rank, every parameter has its place and the program passes. */
static void published_models_lower(void **state) {
    static const char *const paths[] = {
        "examples/models/olmoe-1b-7b.json",
        "examples/models/report-8l-n32.json",
        "../shared/data/models/Qwen--Qwen1.5-MoE-A2.7B.json",
        "../shared/data/models/Qwen--Qwen3-235B-A22B.json",
        "../shared/data/models/Qwen--Qwen3-8B.json",
        "../shared/data/models/deepseek-ai--DeepSeek-V2.json",
        "../shared/data/models/deepseek-ai--DeepSeek-V3.json",
        "../shared/data/models/meta-llama--Llama-4-Maverick-17B-128E-Instruct.json",
        "../shared/data/models/meta-llama--Meta-Llama-3.1-70B.json",
        "../shared/data/models/mistralai--Mixtral-8x7B-v0.1.json",
        "../shared/data/models/moonshotai--Kimi-K2-Instruct.json",
        "../shared/data/models/openai--gpt-oss-120b.json",
        "../shared/data/models/zai-org--GLM-4.5-Air.json",
    };
    int64_t lowered = 0;
    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        struct rk_architecture architecture;
        struct rk_error error = {.text = ""};
        if (i >= 2 && access(paths[i], R_OK) != 0)
            continue;
        if (rk_architecture_read_file(paths[i], &architecture, NULL, &error) != RK_OK)
            fail_msg("%s", error.text);
        struct rk_candidate candidate = rk_sample_candidate(&architecture);
        candidate.type = RK_BF16;
        check_program(&architecture, &candidate, 0);
        check_parameter_count(&architecture, &candidate, 0);
        lowered++;
    }
    assert_true(lowered >= 2);
}

/* ---- a tied table on two stages ---- */

static void tied_table_is_reduced_once_and_counted_once(void **state) {
    struct rk_architecture architecture = rk_sample_architecture(RK_SAMPLE_TIED);
    struct rk_candidate candidate = rk_sample_candidate(&architecture);
    int64_t norm_elements[2] = {0}, own[2] = {0}, all_reduce = 0;
    (void)state;
    rk_sample_layout(&architecture, &candidate, 2, 1, 1, 2, 2);
    for (int32_t stage = 0; stage < 2; stage++) {
        struct rk_program *program = rk_sample_lower(&architecture, &candidate, stage);
        for (size_t i = 0; i < program->op_count; i++) {
            const struct rk_op *op = &program->ops[i];
            if (op->shape.kind == RK_OP_GRAD_NORM)
                norm_elements[stage] += op->shape.dim[0];
            if (op->shape.kind == RK_OP_ALL_REDUCE && op->shape.group == RK_GROUP_EMBEDDING)
                all_reduce += op->shape.dim[0];
        }
        own[stage] = (program->dense.elements + program->expert.elements) / 2;
        rk_program_free(program);
    }
    assert_int_equal(all_reduce, 2 * 64 * 32 / 2);
    assert_int_equal(norm_elements[0], own[0]);
    assert_int_equal(norm_elements[1], own[1] - 64 * 32 / 2);
}

/* ---- defects that the check must find ---- */

static struct rk_program *lower_sample(int32_t pipeline, int32_t expert_parallel) {
    struct rk_architecture architecture = rk_sample_architecture(RK_SAMPLE_MIXED);
    struct rk_candidate candidate = rk_sample_candidate(&architecture);
    rk_sample_layout(&architecture, &candidate, pipeline, 1, expert_parallel, expert_parallel, 4);
    return rk_sample_lower(&architecture, &candidate, 0);
}

static struct rk_op *find_op(struct rk_program *program, const char *segment_name, enum rk_op_kind kind) {
    for (size_t s = 0; s < program->segment_count; s++) {
        const struct rk_segment *segment = &program->segments[s];
        for (size_t i = 0; strncmp(segment->name, segment_name, strlen(segment_name)) == 0 && i < segment->op_count;
             i++)
            if (program->ops[segment->first_op + i].shape.kind == kind)
                return &program->ops[segment->first_op + i];
    }
    fail_msg("no %s in '%s'", rk_op_name(kind), segment_name);
    return NULL;
}

static void drop_waits(struct rk_op *op) {
    for (int i = 0; i < RK_OP_WAITS; i++)
        op->wait[i].event = RK_NO_EVENT;
}

/* Each of these ops reads what another stream wrote, or writes what another stream read. */
static void missing_events_are_found(void **state) {
    static const struct {
        const char *segment;
        enum rk_op_kind op;
    } rows[] = {
        {"moe block forward", RK_OP_COUNT_EXCHANGE},  {"moe block forward", RK_OP_ROUTE_MAP},
        {"moe block forward", RK_OP_DISPATCH},        {"moe block forward", RK_OP_GROUPED_GEMM_FORWARD},
        {"moe block forward", RK_OP_COMBINE},         {"moe block backward", RK_OP_COMBINE},
        {"moe block backward", RK_OP_ROUTE_BACKWARD}, {"moe block backward", RK_OP_GROUPED_GEMM_DGRAD},
        {"receive activations", RK_OP_RECEIVE},       {"send gradients", RK_OP_SEND},
        {"receive gradients", RK_OP_RECEIVE},         {"send activations", RK_OP_SEND},
        {"reduce bucket 0", RK_OP_REDUCE_SCATTER},    {"squared gradient norm", RK_OP_GRAD_NORM},
        {"update and gather", RK_OP_ALL_GATHER},      {"sum losses", RK_OP_ALL_REDUCE},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rk_architecture architecture = rk_sample_architecture(RK_SAMPLE_MIXED);
        struct rk_candidate candidate = rk_sample_candidate(&architecture);
        struct rk_error error = {.text = ""};
        rk_sample_layout(&architecture, &candidate, 3, 1, 2, 4, 6);
        struct rk_program *program = rk_sample_lower(&architecture, &candidate, 1);
        assert_int_equal(rk_program_check(program, &error), RK_OK);
        drop_waits(find_op(program, rows[i].segment, rows[i].op));
        if (rk_program_check(program, &error) == RK_OK)
            fail_msg("%s in '%s' without its waits passes", rk_op_name(rows[i].op), rows[i].segment);
        rk_program_free(program);
    }
}

static void expect_defect(struct rk_program *program, const char *said) {
    struct rk_error error = {.text = ""};
    assert_int_equal(rk_program_check(program, &error), RK_ERROR);
    if (strstr(error.text, said) == NULL)
        fail_msg("expected '%s' in: %s", said, error.text);
    rk_program_free(program);
}

static void damaged_tables_are_found(void **state) {
    struct rk_program *program = lower_sample(2, 2);
    (void)state;
    find_op(program, "moe block forward", RK_OP_ROUTE_MAP)->operand[2].buffer = RK_NO_BUFFER;
    expect_defect(program, "lacks operand 2 (row)");

    program = lower_sample(2, 2);
    find_op(program, "moe block forward", RK_OP_COMBINE)->operand[0].offset = 256;
    expect_defect(program, "touches bytes");

    program = lower_sample(2, 2);
    program->buffers[find_buffer(program, "moe.expert_up")].bytes += 256;
    expect_defect(program, "its ops use");

    program = lower_sample(2, 2);
    snprintf(program->buffers[1].name, sizeof program->buffers[1].name, "%s", program->buffers[0].name);
    expect_defect(program, "two buffers");

    program = lower_sample(2, 2);
    program->tensors[2].offset += 128;
    expect_defect(program, "tensor");

    program = lower_sample(2, 2);
    program->buckets[0].elements += 128;
    expect_defect(program, "bucket");

    program = lower_sample(2, 2);
    find_op(program, "moe block forward", RK_OP_ROUTE_MAP)->wait[0].event = 999;
    expect_defect(program, "event");

    program = lower_sample(2, 2);
    program->schedule[3].ordinal = 77;
    expect_defect(program, "visit 3");

    program = lower_sample(2, 2);
    struct rk_op *down = find_op(program, "moe block backward", RK_OP_GROUPED_GEMM_DGRAD);
    down->operand[0].buffer = find_buffer(program, "moe.d_rows");
    expect_defect(program, "before it was written");
}

/* ---- refusals ---- */

static void impossible_candidates_are_refused(void **state) {
    struct rk_architecture architecture = rk_sample_architecture(RK_SAMPLE_MOE);
    struct rk_candidate candidate = rk_sample_candidate(&architecture);
    struct rk_program *program = NULL;
    struct rk_error error = {.text = ""};
    (void)state;
    assert_int_equal(rk_program_lower(&architecture, &candidate, 1, &program, &error), RK_USAGE);
    candidate.micro_batch_tokens = candidate.global_batch_tokens = (int64_t)1 << 30;
    assert_int_equal(rk_program_lower(&architecture, &candidate, 0, &program, &error), RK_INFEASIBLE);
    assert_non_null(strstr(error.text, "routes"));
    candidate = rk_sample_candidate(&architecture);
    candidate.sequence = 5;
    assert_int_equal(rk_program_lower(&architecture, &candidate, 0, &program, &error), RK_USAGE);
    assert_null(program);
}

/* Counts that pass one by one and whose products do not: 64-bit byte counts would wrap. */
static void sizes_beyond_64_bits_are_refused(void **state) {
    struct rk_architecture architecture = rk_sample_architecture(RK_SAMPLE_MOE);
    struct rk_candidate candidate = rk_sample_candidate(&architecture);
    struct rk_program *program = NULL;
    struct rk_error error = {.text = ""};
    (void)state;
    architecture.hidden = 1;
    architecture.heads = architecture.kv_heads = architecture.head_dim = 65536;
    assert_int_equal(rk_architecture_check("wide", &architecture, &error), RK_OK);
    candidate.sequence = 1024;
    candidate.micro_batch_tokens = candidate.global_batch_tokens = (int64_t)1 << 29;
    assert_int_equal(rk_program_lower(&architecture, &candidate, 0, &program, &error), RK_INFEASIBLE);
    assert_non_null(strstr(error.text, "values of a micro-batch"));

    architecture = rk_sample_architecture(RK_SAMPLE_DENSE);
    architecture.vocabulary = INT32_MAX;
    candidate = rk_sample_candidate(&architecture);
    candidate.micro_batch_tokens = candidate.global_batch_tokens = candidate.logits_chunk_tokens = (int64_t)1 << 30;
    assert_int_equal(rk_program_lower(&architecture, &candidate, 0, &program, &error), RK_INFEASIBLE);
    assert_non_null(strstr(error.text, "values of a micro-batch"));

    architecture = rk_sample_architecture(RK_SAMPLE_MOE);
    candidate = rk_sample_candidate(&architecture);
    candidate.global_batch_tokens *= 1 << 20;
    assert_int_equal(rk_program_lower(&architecture, &candidate, 0, &program, &error), RK_INFEASIBLE);
    assert_non_null(strstr(error.text, "enlarge the micro-batch"));
    candidate.expert_parallel = candidate.data_parallel = 1 << 20;
    candidate.capacity_factor = 1e6;
    candidate.micro_batch_tokens = (int64_t)1 << 31;
    architecture.top_k = 1 << 24;
    assert_true(rk_candidate_receive_rows(&architecture, &candidate) == (int64_t)1 << 62);
    assert_null(program);
}

/* ---- speed ---- */

static void large_stages_lower_at_once(void **state) {
    struct rk_architecture architecture = rk_sample_architecture(RK_SAMPLE_MOE);
    (void)state;
    architecture.layers = architecture.moe_layers = 64;
    memset(architecture.block, RK_BLOCK_MOE, 64);
    struct rk_candidate candidate = rk_sample_candidate(&architecture);
    rk_sample_layout(&architecture, &candidate, 1, 1, 2, 4, 128);
    double best = 1;
    for (int i = 0; i < 5; i++) {
        clock_t begin = clock();
        rk_program_free(rk_sample_lower(&architecture, &candidate, 0));
        double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
        best = seconds < best ? seconds : best;
    }
    assert_true(best < 0.05);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_program_of_the_grid_passes_the_check),
        cmocka_unit_test(blocks_hold_every_op_once),
        cmocka_unit_test(op_counts_of_blocks),
        cmocka_unit_test(schedules_visit_everything),
        cmocka_unit_test(buckets_are_reduced_when_complete),
        cmocka_unit_test(tensors_are_the_counted_parameters),
        cmocka_unit_test(published_models_lower),
        cmocka_unit_test(tied_table_is_reduced_once_and_counted_once),
        cmocka_unit_test(missing_events_are_found),
        cmocka_unit_test(damaged_tables_are_found),
        cmocka_unit_test(impossible_candidates_are_refused),
        cmocka_unit_test(sizes_beyond_64_bits_are_refused),
        cmocka_unit_test(large_stages_lower_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
