#include "report/compare.h"

#include "base/statistics.h"
#include "executor/training.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows being collected. */
struct maker {
    const struct rk_compare_input *input;
    struct rk_comparison *made;
    size_t capacity;
};

static struct rk_comparison_row *add_row(struct maker *maker, const char *level, const char *name, int64_t stage,
                                         const char *unit, struct rk_error *error) {
    struct rk_comparison *made = maker->made;
    if (made->row_count == maker->capacity) {
        size_t wanted = maker->capacity == 0 ? 128 : 2 * maker->capacity;
        struct rk_comparison_row *rows = realloc(made->rows, wanted * sizeof *rows);
        if (rows == NULL) {
            rk_fail(error, RK_ERROR, "out of memory for the comparison");
            return NULL;
        }
        made->rows = rows;
        maker->capacity = wanted;
    }
    struct rk_comparison_row *row = &made->rows[made->row_count++];
    *row = (struct rk_comparison_row){.stage = stage,
                                      .predicted = NAN,
                                      .measured = NAN,
                                      .relative_uncertainty = NAN,
                                      .tolerance = NAN,
                                      .within = true};
    snprintf(row->level, sizeof row->level, "%s", level);
    snprintf(row->name, sizeof row->name, "%s", name);
    snprintf(row->unit, sizeof row->unit, "%s", unit);
    return row;
}

static enum rk_status measure_step(const struct rk_compare_input *input, struct rk_comparison *made,
                                   struct rk_error *error) {
    size_t first = (size_t)rk_training_warm_up((int64_t)input->step_count), count = 0;
    double *samples = calloc(input->step_count + 1, sizeof *samples);
    if (samples == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the steps of the run");
    for (size_t i = 0; i < input->step_count; i++) {
        made->traced_steps += input->steps[i].traced;
        if (i >= first && !input->steps[i].traced)
            samples[count++] = input->steps[i].seconds;
    }
    enum rk_status status = RK_OK;
    struct rk_interval interval = {NAN, NAN};
    if (count == 0)
        status = rk_fail(error, RK_USAGE, "the run has no untraced step after its warm-up; run more steps");
    else
        status = rk_statistics_median_interval(samples, count, 0.95, &made->measured_seconds, &interval, error);
    made->counted_steps = count;
    made->low = interval.low;
    made->high = interval.high;
    free(samples);
    return status;
}

static enum rk_origin worst_origin(const struct rk_plan *plan) {
    enum rk_origin worst = RK_ORIGIN_MEASURED;
    for (size_t i = 0; i < plan->term_count; i++)
        worst = plan->terms[i].origin > worst ? plan->terms[i].origin : worst;
    return worst;
}

static enum rk_status add_step(struct maker *maker, struct rk_error *error) {
    const struct rk_plan *plan = maker->input->plan;
    struct rk_comparison *made = maker->made;
    struct rk_comparison_row *row = add_row(maker, "step", "step", -1, "s", error);
    if (row == NULL)
        return RK_ERROR;
    made->predicted_seconds = plan->seconds;
    row->predicted = plan->seconds;
    row->measured = made->measured_seconds;
    row->relative_uncertainty = plan->seconds > 0 ? (plan->high - plan->low) / 2 / plan->seconds : NAN;
    row->tolerance = maker->input->tolerance;
    row->within = isnan(row->tolerance) || fabs(rk_comparison_error(row)) <= row->tolerance;
    made->within = row->within;
    snprintf(row->origin, sizeof row->origin, "%s", rk_origin_name(worst_origin(plan)));
    snprintf(row->note, sizeof row->note, "median of %zu steps, 95 %% interval %.6g to %.6g s", made->counted_steps,
             made->low, made->high);
    return RK_OK;
}

static bool is_account(const struct rk_run_op_row *row) {
    return strcmp(row->phase, "account") == 0;
}

/* Which rows of ops belong to a line of the comparison. */
struct selection {
    int64_t stage;
    const char *phase;        /* NULL: any */
    enum rk_op_family family; /* RK_OP_FAMILY_COUNT: any */
    enum rk_op_kind kind;     /* RK_OP_KIND_COUNT: any */
};

/* Busy seconds, as the simulator counts them: waiting for other ranks is no work of the op. NaN without a row. */
static double measured_busy(const struct rk_compare_input *input, const struct selection *selection, int64_t *count) {
    double seconds = 0;
    bool found = false;
    *count = 0;
    for (size_t i = 0; i < input->op_count; i++) {
        const struct rk_run_op_row *row = &input->ops[i];
        enum rk_op_kind kind = rk_op_from_name(row->kind);
        if (is_account(row) || row->rank != -1 || kind == RK_OP_KIND_COUNT)
            continue;
        found = true;
        if (row->stage != selection->stage || (selection->phase != NULL && strcmp(selection->phase, row->phase) != 0) ||
            (selection->family != RK_OP_FAMILY_COUNT && rk_op_family(kind) != selection->family) ||
            (selection->kind != RK_OP_KIND_COUNT && kind != selection->kind))
            continue;
        seconds += row->total_seconds - row->wait_seconds;
        *count += row->count;
    }
    return found ? seconds : NAN;
}

static double measured_account(const struct rk_compare_input *input, int64_t stage, const char *name) {
    for (size_t i = 0; i < input->op_count; i++)
        if (is_account(&input->ops[i]) && input->ops[i].stage == stage && strcmp(input->ops[i].kind, name) == 0)
            return input->ops[i].total_seconds;
    return NAN;
}

static enum rk_status add_seconds(struct maker *maker, const char *level, const char *name, int64_t stage,
                                  double predicted, double measured, struct rk_error *error) {
    if (predicted == 0 && !(measured > 0))
        return RK_OK;
    struct rk_comparison_row *row = add_row(maker, level, name, stage, "s", error);
    if (row == NULL)
        return RK_ERROR;
    row->predicted = predicted;
    row->measured = measured;
    return RK_OK;
}

static enum rk_status add_stage(struct maker *maker, int32_t stage, struct rk_error *error) {
    const struct rk_stage_time *time = &maker->input->plan->stages[stage];
    enum rk_status status = RK_OK;
    int64_t count = 0;
    for (int account = 0; account < RK_STAGE_ACCOUNT_COUNT && status == RK_OK; account++)
        status = add_seconds(maker, "account", rk_stage_account_name(account), stage,
                             rk_stage_account_seconds(time, account),
                             measured_account(maker->input, stage, rk_stage_account_name(account)), error);
    for (int phase = 0; phase < RK_PHASE_COUNT && status == RK_OK; phase++) {
        struct selection selection = {stage, rk_phase_name((enum rk_phase)phase), RK_OP_FAMILY_COUNT, RK_OP_KIND_COUNT};
        status = add_seconds(maker, "phase", selection.phase, stage, time->phase[phase],
                             measured_busy(maker->input, &selection, &count), error);
    }
    for (int family = 0; family < RK_OP_FAMILY_COUNT && status == RK_OK; family++) {
        struct selection selection = {stage, NULL, (enum rk_op_family)family, RK_OP_KIND_COUNT};
        status = add_seconds(maker, "family", rk_op_family_name((enum rk_op_family)family), stage, time->family[family],
                             measured_busy(maker->input, &selection, &count), error);
    }
    return status;
}

/* Which cost row priced the kind, what its cost would have to be for the step's difference to vanish if it alone were
 * wrong, and what it is found to be. */
static void explain_op(const struct rk_comparison *made, const struct rk_plan_term *term, double measured,
                       int64_t count, char *note, size_t size) {
    double missing = made->measured_seconds - made->predicted_seconds;
    double needed = term->seconds > 0 ? 1 + missing / term->seconds : NAN;
    char counts[64] = "", found[48] = "", factor[64] = "smaller than the step's difference";
    if (count > 0 && count != term->count)
        snprintf(counts, sizeof counts, "; %lld predicted, %lld run", (long long)term->count, (long long)count);
    if (!isnan(measured) && term->seconds > 0)
        snprintf(found, sizeof found, ", is x%.3f", measured / term->seconds);
    if (needed > 0)
        snprintf(factor, sizeof factor, "would have to be x%.3f to explain the step alone", needed);
    snprintf(note, size, "%s: %s%s%s", term->source, factor, found, counts);
}

static enum rk_status add_ops(struct maker *maker, struct rk_error *error) {
    const struct rk_plan *plan = maker->input->plan;
    for (size_t i = 0; i < plan->term_count; i++) {
        const struct rk_plan_term *term = &plan->terms[i];
        struct selection selection = {maker->made->deciding_stage, NULL, RK_OP_FAMILY_COUNT, term->kind};
        struct rk_comparison_row *row =
            add_row(maker, "op", rk_op_name(term->kind), maker->made->deciding_stage, "s", error);
        int64_t count = 0;
        if (row == NULL)
            return RK_ERROR;
        row->predicted = term->seconds;
        row->measured = measured_busy(maker->input, &selection, &count);
        row->relative_uncertainty = term->relative_uncertainty;
        snprintf(row->origin, sizeof row->origin, "%s", rk_origin_name(term->origin));
        explain_op(maker->made, term, row->measured, count, row->note, sizeof row->note);
    }
    return RK_OK;
}

static enum rk_status add_memory(struct maker *maker, struct rk_error *error) {
    const struct rk_compare_input *input = maker->input;
    for (size_t i = 0; i < input->memory_count; i++) {
        const struct rk_run_memory_row *memory = &input->memory[i];
        char name[80];
        bool predicted = memory->predicted_bytes >= 0;
        if (memory->predicted_bytes <= 0 && memory->allocated_bytes == 0)
            continue;
        snprintf(name, sizeof name, "rank %lld %s %s", (long long)memory->rank, memory->space, memory->owner);
        struct rk_comparison_row *row =
            add_row(maker, "memory", name, memory->rank / input->plan->candidate.data_parallel, "bytes", error);
        if (row == NULL)
            return RK_ERROR;
        row->predicted = predicted ? (double)memory->predicted_bytes : NAN;
        row->measured = (double)memory->allocated_bytes;
        if (!predicted) /* what the driver counts: context, libraries and all */
            continue;
        row->relative_uncertainty = 0;
        row->tolerance = 0;
        row->within = memory->predicted_bytes == memory->allocated_bytes;
        maker->made->memory_rows++;
        maker->made->memory_exact += row->within;
    }
    return RK_OK;
}

enum rk_status rk_compare(const struct rk_compare_input *input, struct rk_comparison *comparison,
                          struct rk_error *error) {
    struct rk_comparison made = {.measured_seconds = NAN};
    made.deciding_stage = rk_stage_deciding(input->plan->stages, input->plan->candidate.pipeline);
    struct maker maker = {.input = input, .made = &made};
    enum rk_status status = measure_step(input, &made, error);
    if (status == RK_OK)
        status = add_step(&maker, error);
    for (int32_t stage = 0; stage < input->plan->candidate.pipeline && status == RK_OK; stage++)
        status = add_stage(&maker, stage, error);
    if (status == RK_OK)
        status = add_ops(&maker, error);
    if (status == RK_OK)
        status = add_memory(&maker, error);
    if (status != RK_OK) {
        rk_comparison_free(&made);
        return status;
    }
    *comparison = made;
    return RK_OK;
}

void rk_comparison_free(struct rk_comparison *comparison) {
    free(comparison->rows);
    memset(comparison, 0, sizeof *comparison);
}

double rk_comparison_error(const struct rk_comparison_row *row) {
    return row->measured > 0 ? row->predicted / row->measured - 1 : NAN;
}
