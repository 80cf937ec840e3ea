#include "model/plan_fields.h"

static const char *recompute_name(int value) {
    return rk_recompute_name((enum rk_recompute)value);
}
static const char *type_name(int value) {
    return rk_data_type_name((enum rk_data_type)value);
}
static const char *backend_name(int value) {
    return value == RK_BACKEND_CPU ? "cpu" : "cuda";
}
static const char *routing_name(int value) {
    return rk_routing_name((enum rk_routing)value);
}
static const char *origin_name(int value) {
    return rk_origin_name((enum rk_origin)value);
}
static const char *refusal_name(int value) {
    return rk_refusal_name((enum rk_refusal)value);
}
static const char *op_name(int value) {
    return rk_op_name((enum rk_op_kind)value);
}
static const char *phase_name(int value) {
    return rk_phase_name((enum rk_phase)value);
}
static const char *family_name(int value) {
    return rk_op_family_name((enum rk_op_family)value);
}
static const char *stream_name(int value) {
    return rk_stream_name((enum rk_stream_kind)value);
}
static const char *owner_name(int value) {
    return rk_owner_name((enum rk_owner)value);
}

const struct rk_plan_names rk_plan_recompute_names = {recompute_name, RK_RECOMPUTE_COUNT};
const struct rk_plan_names rk_plan_type_names = {type_name, RK_DATA_TYPE_COUNT};
const struct rk_plan_names rk_plan_backend_names = {backend_name, RK_BACKEND_COUNT};
const struct rk_plan_names rk_plan_routing_names = {routing_name, RK_ROUTING_COUNT};
const struct rk_plan_names rk_plan_origin_names = {origin_name, RK_ORIGIN_COUNT};
const struct rk_plan_names rk_plan_refusal_names = {refusal_name, RK_REFUSAL_COUNT};
const struct rk_plan_names rk_plan_op_names = {op_name, RK_OP_KIND_COUNT};
const struct rk_plan_names rk_plan_phase_names = {phase_name, RK_PHASE_COUNT};
const struct rk_plan_names rk_plan_family_names = {family_name, RK_OP_FAMILY_COUNT};
const struct rk_plan_names rk_plan_stream_names = {stream_name, RK_STREAM_COUNT};
const struct rk_plan_names rk_plan_owner_names = {owner_name, RK_OWNER_COUNT};

#define SECONDS_MAX 1e12
#define COUNT_MAX RK_PLAN_WHOLE_MAX

#define FIELD(structure, member, type, ...)                                                                            \
    { #member, offsetof(struct structure, member), RK_PLAN_##type, __VA_ARGS__ }
#define COUNT(array) (sizeof array / sizeof array[0])

const struct rk_plan_field rk_plan_candidate_fields[] = {
    FIELD(rk_candidate, pipeline, I32, 1, RK_STAGES_MAX, NULL),
    FIELD(rk_candidate, virtual_stages, I32, 1, RK_VIRTUAL_STAGES_MAX, NULL),
    FIELD(rk_candidate, expert_parallel, I32, 1, INT32_MAX, NULL),
    FIELD(rk_candidate, data_parallel, I32, 1, INT32_MAX, NULL),
    FIELD(rk_candidate, micro_batch_tokens, I64, 1, COUNT_MAX, NULL),
    FIELD(rk_candidate, sequence, I64, 1, COUNT_MAX, NULL),
    FIELD(rk_candidate, global_batch_tokens, I64, 1, COUNT_MAX, NULL),
    FIELD(rk_candidate, recompute, NAME, 0, 0, &rk_plan_recompute_names),
    FIELD(rk_candidate, offload_percent, I32, 0, 100, NULL),
    FIELD(rk_candidate, type, NAME, 0, 0, &rk_plan_type_names),
    FIELD(rk_candidate, backend, NAME, 0, 0, &rk_plan_backend_names),
    FIELD(rk_candidate, capacity_factor, F64, 1e-3, 1e6, NULL),
    FIELD(rk_candidate, routing, NAME, 0, 0, &rk_plan_routing_names),
    FIELD(rk_candidate, logits_chunk_tokens, I64, 1, COUNT_MAX, NULL),
    FIELD(rk_candidate, bucket_bytes, I64, 1, COUNT_MAX, NULL),
    FIELD(rk_candidate, balance_coefficient, F64, 0, 1e6, NULL),
    FIELD(rk_candidate, z_coefficient, F64, 0, 1e6, NULL),
    FIELD(rk_candidate, weight_decay, F64, 0, 1e6, NULL),
};
const size_t rk_plan_candidate_field_count = COUNT(rk_plan_candidate_fields);

const struct rk_plan_field rk_plan_time_fields[] = {
    FIELD(rk_stage_time, compute, F64, 0, SECONDS_MAX, NULL),
    FIELD(rk_stage_time, exposed_exchange, F64, 0, SECONDS_MAX, NULL),
    FIELD(rk_stage_time, exposed_pipeline, F64, 0, SECONDS_MAX, NULL),
    FIELD(rk_stage_time, bubble, F64, 0, SECONDS_MAX, NULL),
    FIELD(rk_stage_time, exposed_reduction, F64, 0, SECONDS_MAX, NULL),
    FIELD(rk_stage_time, optimizer, F64, 0, SECONDS_MAX, NULL),
    FIELD(rk_stage_time, exposed_offload, F64, 0, SECONDS_MAX, NULL),
    FIELD(rk_stage_time, starved, F64, 0, SECONDS_MAX, NULL),
    FIELD(rk_stage_time, total, F64, 0, SECONDS_MAX, NULL),
    FIELD(rk_stage_time, host_submission, F64, 0, SECONDS_MAX, NULL),
};
const size_t rk_plan_time_field_count = COUNT(rk_plan_time_fields);

const struct rk_plan_field rk_plan_term_fields[] = {
    FIELD(rk_plan_term, kind, NAME, 0, 0, &rk_plan_op_names),
    FIELD(rk_plan_term, count, I64, 1, COUNT_MAX, NULL),
    FIELD(rk_plan_term, seconds, F64, 0, SECONDS_MAX, NULL),
    FIELD(rk_plan_term, relative_uncertainty, F64, 0, 1e6, NULL),
    FIELD(rk_plan_term, origin, NAME, 0, 0, &rk_plan_origin_names),
};
const size_t rk_plan_term_field_count = COUNT(rk_plan_term_fields);

const struct rk_plan_field rk_plan_judgement_fields[] = {
    FIELD(rk_judgement, refusal, NAME, 0, 0, &rk_plan_refusal_names),
    FIELD(rk_judgement, need, F64, 0, 1e18, NULL),
    FIELD(rk_judgement, have, F64, 0, 1e18, NULL),
    FIELD(rk_judgement, seconds, F64, 0, SECONDS_MAX, NULL),
    FIELD(rk_judgement, low, F64, 0, SECONDS_MAX, NULL),
    FIELD(rk_judgement, high, F64, 0, SECONDS_MAX, NULL),
    FIELD(rk_judgement, simulated, BOOL, 0, 1, NULL),
    FIELD(rk_judgement, heaviest_stage, I32, 0, RK_STAGES_MAX - 1, NULL),
    FIELD(rk_judgement, origin, NAME, 0, 0, &rk_plan_origin_names),
};
const size_t rk_plan_judgement_field_count = COUNT(rk_plan_judgement_fields);
