#include "model/plan_fields.h"

#include <string.h>

/* The tree under construction; failed once memory ran out. */
struct writer {
    bool failed;
};

static cJSON *keep(struct writer *writer, cJSON *item) {
    writer->failed = writer->failed || item == NULL;
    return item;
}

static void number(struct writer *writer, cJSON *object, const char *key, double value) {
    keep(writer, cJSON_AddNumberToObject(object, key, value));
}

static void string(struct writer *writer, cJSON *object, const char *key, const char *value) {
    keep(writer, cJSON_AddStringToObject(object, key, value));
}

static cJSON *object_in(struct writer *writer, cJSON *parent, const char *key) {
    return keep(writer, cJSON_AddObjectToObject(parent, key));
}

static cJSON *array_in(struct writer *writer, cJSON *parent, const char *key) {
    return keep(writer, cJSON_AddArrayToObject(parent, key));
}

static cJSON *object_of_array(struct writer *writer, cJSON *array) {
    cJSON *item = keep(writer, cJSON_CreateObject());
    if (item != NULL && !cJSON_AddItemToArray(array, item)) {
        cJSON_Delete(item);
        return keep(writer, NULL);
    }
    return item;
}

static void numbers(struct writer *writer, cJSON *parent, const char *key, const double *values, size_t count) {
    cJSON *array = array_in(writer, parent, key);
    for (size_t i = 0; array != NULL && i < count; i++) {
        cJSON *item = keep(writer, cJSON_CreateNumber(values[i]));
        if (item != NULL && !cJSON_AddItemToArray(array, item)) {
            cJSON_Delete(item);
            writer->failed = true;
        }
    }
}

static void fields(struct writer *writer, cJSON *object, const struct rk_plan_field *table, size_t count,
                   const void *structure) {
    for (size_t i = 0; i < count; i++) {
        const struct rk_plan_field *field = &table[i];
        const char *at = (const char *)structure + field->offset;
        int32_t narrow;
        int64_t wide;
        double real;
        int name;
        switch (field->type) {
        case RK_PLAN_I32:
            memcpy(&narrow, at, sizeof narrow);
            number(writer, object, field->key, narrow);
            break;
        case RK_PLAN_I64:
            memcpy(&wide, at, sizeof wide);
            number(writer, object, field->key, (double)wide);
            break;
        case RK_PLAN_F64:
            memcpy(&real, at, sizeof real);
            number(writer, object, field->key, real);
            break;
        case RK_PLAN_BOOL:
            keep(writer, cJSON_AddBoolToObject(object, field->key, *(const bool *)at));
            break;
        case RK_PLAN_NAME:
            memcpy(&name, at, sizeof name);
            string(writer, object, field->key, field->names->name(name));
            break;
        }
    }
}

static void write_candidate(struct writer *writer, cJSON *parent, const struct rk_candidate *candidate) {
    cJSON *object = object_in(writer, parent, "candidate");
    double layers[RK_STAGES_MAX * RK_VIRTUAL_STAGES_MAX];
    size_t chunks = (size_t)candidate->pipeline * (size_t)candidate->virtual_stages;
    for (size_t i = 0; i < chunks; i++)
        layers[i] = candidate->chunk_layers[i];
    fields(writer, object, rk_plan_candidate_fields, rk_plan_candidate_field_count, candidate);
    numbers(writer, object, "chunk_layers", layers, chunks);
}

/* One number for each value of an enumeration, under its names. */
static void named_numbers(struct writer *writer, cJSON *parent, const char *key, const double *values,
                          const struct rk_plan_names *names) {
    cJSON *object = object_in(writer, parent, key);
    for (int i = 0; i < names->count; i++)
        number(writer, object, names->name(i), values[i]);
}

static void write_stage(struct writer *writer, cJSON *array, const struct rk_plan *plan, int32_t stage) {
    cJSON *object = object_of_array(writer, array);
    const struct rk_stage_time *time = &plan->stages[stage];
    double bytes[RK_OWNER_COUNT];
    for (int owner = 0; owner < RK_OWNER_COUNT; owner++)
        bytes[owner] = (double)plan->owner_bytes[stage][owner];
    number(writer, object, "arena_bytes", (double)plan->arena_bytes[stage]);
    number(writer, object, "host_bytes", (double)plan->host_bytes[stage]);
    named_numbers(writer, object, "owner_bytes", bytes, &rk_plan_owner_names);
    cJSON *seconds = object_in(writer, object, "seconds");
    fields(writer, seconds, rk_plan_time_fields, rk_plan_time_field_count, time);
    named_numbers(writer, seconds, "phase", time->phase, &rk_plan_phase_names);
    named_numbers(writer, seconds, "family", time->family, &rk_plan_family_names);
    named_numbers(writer, seconds, "stream", time->stream_busy, &rk_plan_stream_names);
}

static void write_example(struct writer *writer, cJSON *array, const struct rk_judgement *example) {
    cJSON *object = object_of_array(writer, array);
    double bytes[2] = {(double)example->arena_bytes[0], (double)example->arena_bytes[1]};
    write_candidate(writer, object, &example->candidate);
    fields(writer, object, rk_plan_judgement_fields, rk_plan_judgement_field_count, example);
    numbers(writer, object, "arena_bytes", bytes, 2);
    numbers(writer, object, "offload_need", example->offload_need, 2);
    string(writer, object, "remedy", example->remedy);
}

static void write_search(struct writer *writer, cJSON *root, const struct rk_plan *plan) {
    cJSON *object = object_in(writer, root, "search");
    double refused[RK_REFUSAL_COUNT];
    for (int kind = 0; kind < RK_REFUSAL_COUNT; kind++)
        refused[kind] = (double)plan->refused[kind];
    number(writer, object, "candidates", (double)plan->candidates);
    number(writer, object, "feasible", (double)plan->feasible);
    cJSON *counts = object_in(writer, object, "refused");
    /* Refusals for size are rare, and named only where there are some. */
    for (int kind = RK_REFUSAL_NONE + 1; kind < RK_REFUSAL_COUNT; kind++)
        if (kind != RK_REFUSAL_SIZE || refused[kind] > 0)
            number(writer, counts, rk_refusal_name((enum rk_refusal)kind), refused[kind]);
    cJSON *examples = array_in(writer, object, "examples");
    for (size_t i = 0; i < plan->example_count; i++)
        write_example(writer, examples, &plan->examples[i]);
}

static void write_terms(struct writer *writer, cJSON *root, const struct rk_plan *plan) {
    cJSON *array = array_in(writer, root, "terms");
    for (size_t i = 0; i < plan->term_count; i++) {
        cJSON *object = object_of_array(writer, array);
        fields(writer, object, rk_plan_term_fields, rk_plan_term_field_count, &plan->terms[i]);
        string(writer, object, "source", plan->terms[i].source);
    }
}

static enum rk_status write_config(struct writer *writer, cJSON *root, const struct rk_plan *plan,
                                   struct rk_error *error) {
    cJSON *config = NULL;
    enum rk_status status = rk_json_parse("config", plan->config_text, strlen(plan->config_text), &config, error);
    if (status == RK_OK && !cJSON_AddItemToObject(root, "config", config)) {
        cJSON_Delete(config);
        writer->failed = true;
    }
    return status;
}

static void write_head(struct writer *writer, cJSON *root, const struct rk_plan *plan) {
    string(writer, root, "format", RK_PLAN_FORMAT);
    number(writer, root, "version", RK_PLAN_VERSION);
    string(writer, root, "model", plan->architecture.name);
    string(writer, root, "machine", plan->machine);
    number(writer, root, "calibration", (double)plan->calibration);
    write_candidate(writer, root, &plan->candidate);
    cJSON *predicted = object_in(writer, root, "step_seconds");
    number(writer, predicted, "value", plan->seconds);
    number(writer, predicted, "low", plan->low);
    number(writer, predicted, "high", plan->high);
}

enum rk_status rk_plan_write(const struct rk_plan *plan, struct rk_text *text, struct rk_error *error) {
    struct writer writer = {0};
    cJSON *root = keep(&writer, cJSON_CreateObject());
    if (root == NULL)
        return rk_fail(error, RK_ERROR, "plan: out of memory");
    write_head(&writer, root, plan);
    cJSON *stages = array_in(&writer, root, "stages");
    for (int32_t s = 0; s < plan->candidate.pipeline; s++)
        write_stage(&writer, stages, plan, s);
    write_terms(&writer, root, plan);
    write_search(&writer, root, plan);
    enum rk_status status = write_config(&writer, root, plan, error);
    if (status == RK_OK && writer.failed)
        status = rk_fail(error, RK_ERROR, "plan: out of memory");
    if (status == RK_OK)
        status = rk_json_print(root, text, error);
    cJSON_Delete(root);
    return status;
}
