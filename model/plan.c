#include "model/plan_fields.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RUNNERS_UP = 5 };

void rk_plan_free(struct rk_plan *plan) {
    if (plan == NULL)
        return;
    free(plan->config_text);
    free(plan->stages);
    free(plan->owner_bytes);
    free(plan->arena_bytes);
    free(plan->host_bytes);
    free(plan->terms);
    free(plan->examples);
    free(plan);
}

/* ---- the config as it is kept ---- */

static enum rk_status keep_config(const char *name, const char *config_text, struct rk_plan *plan,
                                  struct rk_error *error) {
    cJSON *config = NULL;
    struct rk_text text = {0};
    enum rk_status status = rk_json_parse(name, config_text, strlen(config_text), &config, error);
    if (status == RK_OK)
        status = rk_json_print(config, &text, error);
    cJSON_Delete(config);
    if (status == RK_OK && text.failed)
        status = rk_fail(error, RK_ERROR, "%s: out of memory", name);
    if (status != RK_OK) {
        rk_text_free(&text);
        return status;
    }
    plan->config_text = text.data;
    return RK_OK;
}

/* ---- predicted time and memory ---- */

static enum rk_status lay_out(const struct rk_program *program, int32_t stage, struct rk_plan *plan,
                              struct rk_error *error) {
    struct rk_memory_layout layout = {0};
    enum rk_status status = rk_memory_layout_make(program, &layout, error);
    if (status != RK_OK)
        return status;
    plan->arena_bytes[stage] = layout.arena_bytes;
    plan->host_bytes[stage] = layout.host_bytes;
    memcpy(plan->owner_bytes[stage], layout.owner_bytes, sizeof plan->owner_bytes[stage]);
    rk_memory_layout_free(&layout);
    return RK_OK;
}

/* Sums and differences of times can end a rounding error below nothing. */
static void drop_negative_zeros(struct rk_stage_time *time) {
    for (size_t i = 0; i < rk_plan_time_field_count; i++) {
        double *value = (double *)(void *)((char *)time + rk_plan_time_fields[i].offset);
        if (!(*value > 0))
            *value = 0;
    }
}

static enum rk_status take_simulation(const struct rk_simulation *simulation, struct rk_plan *plan,
                                      struct rk_error *error) {
    plan->seconds = simulation->step_seconds;
    plan->low = simulation->low;
    plan->high = simulation->high;
    for (int32_t s = 0; s < simulation->stage_count; s++) {
        plan->stages[s] = simulation->stages[s];
        drop_negative_zeros(&plan->stages[s]);
    }
    plan->terms = calloc(RK_OP_KIND_COUNT, sizeof *plan->terms);
    if (plan->terms == NULL)
        return rk_fail(error, RK_ERROR, "plan: out of memory");
    for (int kind = 0; kind < RK_OP_KIND_COUNT; kind++) {
        const struct rk_cost *cost = &simulation->kind_origin[kind];
        if (simulation->kind_count[kind] == 0)
            continue;
        struct rk_plan_term *term = &plan->terms[plan->term_count++];
        *term = (struct rk_plan_term){.kind = (enum rk_op_kind)kind,
                                      .count = simulation->kind_count[kind],
                                      .seconds = simulation->kind_seconds[kind],
                                      .relative_uncertainty = cost->relative_uncertainty,
                                      .origin = cost->origin};
        memcpy(term->source, cost->source, sizeof term->source);
    }
    return RK_OK;
}

static enum rk_status predict(const struct rk_machine *machine, const struct rk_cost_source *costs,
                              struct rk_plan *plan, struct rk_error *error) {
    struct rk_program *programs[RK_STAGES_MAX] = {NULL};
    struct rk_simulation simulation = {0};
    int32_t stages = plan->candidate.pipeline;
    enum rk_status status = RK_OK;
    for (int32_t s = 0; status == RK_OK && s < stages; s++) {
        status = rk_program_lower(&plan->architecture, &plan->candidate, s, &programs[s], error);
        if (status == RK_OK)
            status = lay_out(programs[s], s, plan, error);
    }
    if (status == RK_OK)
        status = rk_simulate((const struct rk_program *const *)programs, machine, costs, false, &simulation, error);
    if (status == RK_OK)
        status = take_simulation(&simulation, plan, error);
    rk_simulation_free(&simulation);
    for (int32_t s = 0; s < stages; s++)
        rk_program_free(programs[s]);
    return status;
}

/* ---- examples ---- */

/* How telling a refused candidate is as the example of its kind: near the chosen one in every variable; for offload,
 * all of it at the best known times, without recompute. Lower is better. */
static double strangeness(const struct rk_plan *plan, const struct rk_judgement *judgement) {
    const struct rk_candidate *chosen = &plan->candidate, *other = &judgement->candidate;
    double far = 4 * fabs(log2((double)other->pipeline / chosen->pipeline)) +
                 2 * fabs(log2((double)other->expert_parallel / chosen->expert_parallel)) +
                 fabs(log2((double)other->micro_batch_tokens / (double)chosen->micro_batch_tokens)) +
                 3 * fabs(log2((double)other->virtual_stages / chosen->virtual_stages));
    double recompute = other->recompute == RK_RECOMPUTE_NONE ? 0 : 2.0 * (double)(int)other->recompute;
    bool link = judgement->refusal == RK_REFUSAL_OFFLOAD_D2H || judgement->refusal == RK_REFUSAL_OFFLOAD_H2D;
    if (link)
        return 100.0 * (double)(int)judgement->origin + (100 - other->offload_percent) + 20 * recompute + far;
    return far + recompute + other->offload_percent / 100.0;
}

static bool same_variables(const struct rk_candidate *left, const struct rk_candidate *right) {
    return left->pipeline == right->pipeline && left->virtual_stages == right->virtual_stages &&
           left->expert_parallel == right->expert_parallel && left->micro_batch_tokens == right->micro_batch_tokens &&
           left->recompute == right->recompute && left->offload_percent == right->offload_percent;
}

static enum rk_status keep_examples(const struct rk_search_result *search, struct rk_plan *plan,
                                    struct rk_error *error) {
    plan->examples = calloc(RK_PLAN_EXAMPLES_MAX, sizeof *plan->examples);
    if (plan->examples == NULL)
        return rk_fail(error, RK_ERROR, "plan: out of memory");
    if (search == NULL)
        return RK_OK;
    plan->candidates = (int64_t)search->count;
    plan->feasible = (int64_t)search->feasible;
    const struct rk_judgement *telling[RK_REFUSAL_COUNT] = {NULL};
    size_t runners = 0;
    for (size_t i = 0; i < search->kept; i++) {
        const struct rk_judgement *judgement = &search->judgements[i];
        const struct rk_judgement **best = &telling[judgement->refusal];
        if (judgement->refusal == RK_REFUSAL_NONE) {
            if (!same_variables(&judgement->candidate, &plan->candidate) && runners++ < RUNNERS_UP)
                plan->examples[plan->example_count++] = *judgement;
        } else if (*best == NULL || strangeness(plan, judgement) < strangeness(plan, *best)) {
            *best = judgement;
        }
    }
    for (int kind = RK_REFUSAL_NONE + 1; kind < RK_REFUSAL_COUNT; kind++) {
        plan->refused[kind] = (int64_t)search->refused[kind];
        if (telling[kind] != NULL)
            plan->examples[plan->example_count++] = *telling[kind];
    }
    return RK_OK;
}

enum rk_status rk_plan_make(const struct rk_architecture *architecture, const char *config_text,
                            const struct rk_candidate *candidate, const struct rk_machine *machine,
                            const struct rk_cost_source *costs, const struct rk_search_result *search,
                            struct rk_plan **plan, struct rk_error *error) {
    struct rk_plan *made = calloc(1, sizeof *made);
    if (made == NULL)
        return rk_fail(error, RK_ERROR, "plan: out of memory");
    size_t stages = (size_t)candidate->pipeline;
    made->architecture = *architecture;
    made->candidate = *candidate;
    memcpy(made->machine, machine->name, sizeof made->machine);
    made->stages = calloc(stages, sizeof *made->stages);
    made->owner_bytes = calloc(stages, sizeof *made->owner_bytes);
    made->arena_bytes = calloc(stages, sizeof *made->arena_bytes);
    made->host_bytes = calloc(stages, sizeof *made->host_bytes);
    enum rk_status status = RK_OK;
    if (!made->stages || !made->owner_bytes || !made->arena_bytes || !made->host_bytes)
        status = rk_fail(error, RK_ERROR, "plan: out of memory");
    if (status == RK_OK)
        status = keep_config(architecture->name, config_text, made, error);
    if (status == RK_OK)
        status = predict(machine, costs, made, error);
    if (status == RK_OK)
        status = keep_examples(search, made, error);
    if (status != RK_OK) {
        rk_plan_free(made);
        return status;
    }
    *plan = made;
    return RK_OK;
}
