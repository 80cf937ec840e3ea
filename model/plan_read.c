/* Reads plans strictly: what is not understood is refused by name, and what could be computed is computed again and
 * compared. */
#include "model/plan_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first failure stops the reading: later calls do nothing. */
struct reader {
    const char *name;
    enum rk_status status;
    struct rk_error *error;
};

static bool open_object(struct reader *reader, const char *path, const cJSON *value, struct rk_json_object *object) {
    if (reader->status == RK_OK)
        reader->status = rk_json_open(reader->name, path, value, object, reader->error);
    return reader->status == RK_OK;
}

static bool open_child(struct reader *reader, struct rk_json_object *parent, const char *key,
                       struct rk_json_object *child) {
    if (reader->status == RK_OK)
        reader->status = rk_json_child(parent, key, child, reader->error);
    return reader->status == RK_OK;
}

/* Every member was asked for. */
static void close_object(struct reader *reader, const struct rk_json_object *object) {
    struct rk_text names = {0};
    if (reader->status == RK_OK && rk_json_unknown(object, &names) > 0)
        reader->status = rk_fail(reader->error, RK_USAGE, "%s: %s%sunknown keys: %s; this program writes version %d",
                                 reader->name, object->path, object->path[0] != '\0' ? ": " : "",
                                 names.data != NULL ? names.data : "?", RK_PLAN_VERSION);
    rk_text_free(&names);
}

static int64_t read_integer(struct reader *reader, struct rk_json_object *object, const char *key, double minimum,
                            double maximum) {
    int64_t value = 0;
    if (reader->status == RK_OK)
        reader->status = rk_json_integer(object, key, (int64_t)minimum, (int64_t)maximum, &value, reader->error);
    return value;
}

static double read_number(struct reader *reader, struct rk_json_object *object, const char *key, double minimum,
                          double maximum) {
    double value = 0;
    if (reader->status == RK_OK)
        reader->status = rk_json_number(object, key, minimum, maximum, &value, reader->error);
    return value;
}

static void read_string(struct reader *reader, struct rk_json_object *object, const char *key, char *buffer,
                        size_t size) {
    if (reader->status == RK_OK)
        reader->status = rk_json_string(object, key, buffer, size, reader->error);
}

static int read_name(struct reader *reader, struct rk_json_object *object, const char *key,
                     const struct rk_plan_names *names) {
    char text[64] = "";
    read_string(reader, object, key, text, sizeof text);
    for (int value = 0; reader->status == RK_OK && value < names->count; value++)
        if (strcmp(text, names->name(value)) == 0)
            return value;
    if (reader->status == RK_OK)
        reader->status = rk_fail(reader->error, RK_USAGE, "%s: %s%s%s: '%s' is unknown", reader->name, object->path,
                                 object->path[0] != '\0' ? "." : "", key, text);
    return 0;
}

static void read_fields(struct reader *reader, struct rk_json_object *object, const struct rk_plan_field *table,
                        size_t count, void *structure) {
    for (size_t i = 0; i < count && reader->status == RK_OK; i++) {
        const struct rk_plan_field *field = &table[i];
        char *at = (char *)structure + field->offset;
        int32_t narrow;
        int64_t wide;
        double real;
        int name;
        switch (field->type) {
        case RK_PLAN_I32:
            narrow = (int32_t)read_integer(reader, object, field->key, field->minimum, field->maximum);
            memcpy(at, &narrow, sizeof narrow);
            break;
        case RK_PLAN_I64:
            wide = read_integer(reader, object, field->key, field->minimum, field->maximum);
            memcpy(at, &wide, sizeof wide);
            break;
        case RK_PLAN_F64:
            real = read_number(reader, object, field->key, field->minimum, field->maximum);
            memcpy(at, &real, sizeof real);
            break;
        case RK_PLAN_BOOL:
            reader->status = rk_json_boolean(object, field->key, (bool *)at, reader->error);
            break;
        case RK_PLAN_NAME:
            name = read_name(reader, object, field->key, field->names);
            memcpy(at, &name, sizeof name);
            break;
        }
    }
}

/* An array of exactly (least == most) or between so many items; NULL after a failure. */
static const cJSON *read_array(struct reader *reader, struct rk_json_object *object, const char *key, size_t least,
                               size_t most, size_t *count) {
    const cJSON *array = NULL;
    *count = 0;
    if (reader->status == RK_OK)
        reader->status = rk_json_array(object, key, &array, reader->error);
    if (reader->status != RK_OK)
        return NULL;
    *count = (size_t)cJSON_GetArraySize(array);
    if (*count >= least && *count <= most)
        return array;
    reader->status =
        rk_fail(reader->error, RK_USAGE, "%s: %s%s%s has %zu entries; it must have %s%zu", reader->name, object->path,
                object->path[0] != '\0' ? "." : "", key, *count, least == most ? "" : "at most ", most);
    *count = 0;
    return NULL;
}

static void read_numbers(struct reader *reader, struct rk_json_object *object, const char *key, size_t wanted,
                         double minimum, double maximum, bool whole, double *values) {
    size_t count;
    const cJSON *array = read_array(reader, object, key, wanted, wanted, &count);
    if (array == NULL)
        return;
    const cJSON *item = array->child;
    for (size_t i = 0; i < count; i++, item = item->next) {
        bool valid = cJSON_IsNumber(item) && item->valuedouble >= minimum && item->valuedouble <= maximum &&
                     (!whole || item->valuedouble == (double)(int64_t)item->valuedouble);
        if (!valid) {
            reader->status = rk_fail(reader->error, RK_USAGE, "%s: %s%s%s[%zu] must be a %snumber from %g to %g",
                                     reader->name, object->path, object->path[0] != '\0' ? "." : "", key, i,
                                     whole ? "whole " : "", minimum, maximum);
            return;
        }
        values[i] = item->valuedouble;
    }
}

static void read_candidate(struct reader *reader, struct rk_json_object *parent, struct rk_candidate *candidate) {
    struct rk_json_object object;
    if (!open_child(reader, parent, "candidate", &object))
        return;
    double layers[RK_STAGES_MAX * RK_VIRTUAL_STAGES_MAX] = {0};
    read_fields(reader, &object, rk_plan_candidate_fields, rk_plan_candidate_field_count, candidate);
    if (reader->status != RK_OK)
        return;
    size_t chunks = (size_t)candidate->pipeline * (size_t)candidate->virtual_stages;
    read_numbers(reader, &object, "chunk_layers", chunks, 0, RK_LAYERS_MAX, true, layers);
    for (size_t i = 0; reader->status == RK_OK && i < chunks; i++)
        candidate->chunk_layers[i] = (int16_t)layers[i];
    close_object(reader, &object);
}

/* ---- the parts of a plan ---- */

static void read_head(struct reader *reader, struct rk_json_object *root, struct rk_plan *plan, char *model,
                      size_t model_size) {
    char format[32] = "";
    read_string(reader, root, "format", format, sizeof format);
    if (reader->status == RK_OK && strcmp(format, RK_PLAN_FORMAT) != 0)
        reader->status = rk_fail(reader->error, RK_USAGE, "%s: format is '%s', not '%s': this is no plan", reader->name,
                                 format, RK_PLAN_FORMAT);
    int64_t version = read_integer(reader, root, "version", 0, RK_PLAN_WHOLE_MAX);
    if (reader->status == RK_OK && version != RK_PLAN_VERSION)
        reader->status =
            rk_fail(reader->error, RK_USAGE, "%s: version is %lld; this program reads version %d: plan again",
                    reader->name, (long long)version, RK_PLAN_VERSION);
    read_string(reader, root, "model", model, model_size);
    read_string(reader, root, "machine", plan->machine, sizeof plan->machine);
    plan->calibration = read_integer(reader, root, "calibration", 0, RK_PLAN_WHOLE_MAX);
    read_candidate(reader, root, &plan->candidate);
    struct rk_json_object predicted;
    if (!open_child(reader, root, "step_seconds", &predicted))
        return;
    plan->seconds = read_number(reader, &predicted, "value", 0, 1e12);
    plan->low = read_number(reader, &predicted, "low", 0, 1e12);
    plan->high = read_number(reader, &predicted, "high", 0, 1e12);
    close_object(reader, &predicted);
}

static void read_config(struct reader *reader, struct rk_json_object *root, const char *model, struct rk_plan *plan) {
    struct rk_json_object config;
    struct rk_text text = {0};
    if (!open_child(reader, root, "config", &config))
        return;
    reader->status = rk_json_print(config.object, &text, reader->error);
    if (reader->status == RK_OK && text.failed)
        reader->status = rk_fail(reader->error, RK_ERROR, "%s: out of memory", reader->name);
    if (reader->status == RK_OK)
        reader->status = rk_architecture_parse(model, text.data, text.length, &plan->architecture, NULL, reader->error);
    if (reader->status != RK_OK) {
        rk_fail_context(reader->error, "%s: config", reader->name);
        rk_text_free(&text);
        return;
    }
    plan->config_text = text.data;
    if (strcmp(plan->architecture.name, model) != 0)
        reader->status = rk_fail(reader->error, RK_USAGE, "%s: model: '%s' is no model's name", reader->name, model);
}

static void read_named(struct reader *reader, struct rk_json_object *parent, const char *key,
                       const struct rk_plan_names *names, double maximum, double *values) {
    struct rk_json_object object;
    if (!open_child(reader, parent, key, &object))
        return;
    for (int i = 0; i < names->count; i++)
        values[i] = read_number(reader, &object, names->name(i), 0, maximum);
    close_object(reader, &object);
}

static void read_stage(struct reader *reader, const cJSON *item, size_t number, struct rk_plan *plan) {
    char path[32];
    struct rk_json_object object, seconds;
    double bytes[RK_OWNER_COUNT] = {0};
    struct rk_stage_time *time = &plan->stages[number];
    snprintf(path, sizeof path, "stages[%zu]", number);
    if (!open_object(reader, path, item, &object))
        return;
    plan->arena_bytes[number] = read_integer(reader, &object, "arena_bytes", 0, RK_PLAN_WHOLE_MAX);
    plan->host_bytes[number] = read_integer(reader, &object, "host_bytes", 0, RK_PLAN_WHOLE_MAX);
    read_named(reader, &object, "owner_bytes", &rk_plan_owner_names, RK_PLAN_WHOLE_MAX, bytes);
    for (int owner = 0; owner < RK_OWNER_COUNT; owner++)
        plan->owner_bytes[number][owner] = (int64_t)bytes[owner];
    if (!open_child(reader, &object, "seconds", &seconds))
        return;
    read_fields(reader, &seconds, rk_plan_time_fields, rk_plan_time_field_count, time);
    read_named(reader, &seconds, "phase", &rk_plan_phase_names, 1e12, time->phase);
    read_named(reader, &seconds, "family", &rk_plan_family_names, 1e12, time->family);
    read_named(reader, &seconds, "stream", &rk_plan_stream_names, 1e12, time->stream_busy);
    close_object(reader, &seconds);
    close_object(reader, &object);
}

static void *allocate(struct reader *reader, size_t count, size_t size) {
    void *memory = calloc(count + 1, size);
    if (memory == NULL && reader->status == RK_OK)
        reader->status = rk_fail(reader->error, RK_ERROR, "%s: out of memory", reader->name);
    return memory;
}

static void read_stages(struct reader *reader, struct rk_json_object *root, struct rk_plan *plan) {
    size_t count, stages = (size_t)plan->candidate.pipeline;
    const cJSON *array = read_array(reader, root, "stages", stages, stages, &count);
    if (array == NULL)
        return;
    plan->stages = allocate(reader, count, sizeof *plan->stages);
    plan->owner_bytes = allocate(reader, count, sizeof *plan->owner_bytes);
    plan->arena_bytes = allocate(reader, count, sizeof *plan->arena_bytes);
    plan->host_bytes = allocate(reader, count, sizeof *plan->host_bytes);
    const cJSON *item = array->child;
    for (size_t i = 0; i < count && reader->status == RK_OK; i++, item = item->next)
        read_stage(reader, item, i, plan);
}

static void read_terms(struct reader *reader, struct rk_json_object *root, struct rk_plan *plan) {
    size_t count;
    const cJSON *array = read_array(reader, root, "terms", 0, RK_OP_KIND_COUNT, &count);
    if (array == NULL)
        return;
    plan->terms = allocate(reader, count, sizeof *plan->terms);
    const cJSON *item = array->child;
    for (size_t i = 0; i < count && reader->status == RK_OK; i++, item = item->next) {
        char path[32];
        struct rk_json_object object;
        snprintf(path, sizeof path, "terms[%zu]", i);
        if (!open_object(reader, path, item, &object))
            return;
        struct rk_plan_term *term = &plan->terms[i];
        read_fields(reader, &object, rk_plan_term_fields, rk_plan_term_field_count, term);
        read_string(reader, &object, "source", term->source, sizeof term->source);
        close_object(reader, &object);
        plan->term_count = i + 1;
    }
}

static void read_example(struct reader *reader, const cJSON *item, size_t number, struct rk_judgement *example) {
    char path[48];
    struct rk_json_object object;
    double bytes[2] = {0};
    snprintf(path, sizeof path, "search.examples[%zu]", number);
    if (!open_object(reader, path, item, &object))
        return;
    read_candidate(reader, &object, &example->candidate);
    read_fields(reader, &object, rk_plan_judgement_fields, rk_plan_judgement_field_count, example);
    read_numbers(reader, &object, "arena_bytes", 2, 0, RK_PLAN_WHOLE_MAX, true, bytes);
    read_numbers(reader, &object, "offload_need", 2, 0, 1e18, false, example->offload_need);
    read_string(reader, &object, "remedy", example->remedy, sizeof example->remedy);
    example->arena_bytes[0] = (int64_t)bytes[0];
    example->arena_bytes[1] = (int64_t)bytes[1];
    close_object(reader, &object);
}

static void read_search(struct reader *reader, struct rk_json_object *root, struct rk_plan *plan) {
    struct rk_json_object object, refused;
    if (!open_child(reader, root, "search", &object))
        return;
    plan->candidates = read_integer(reader, &object, "candidates", 0, RK_PLAN_WHOLE_MAX);
    plan->feasible = read_integer(reader, &object, "feasible", 0, RK_PLAN_WHOLE_MAX);
    if (!open_child(reader, &object, "refused", &refused))
        return;
    for (int kind = RK_REFUSAL_NONE + 1; kind < RK_REFUSAL_COUNT; kind++) {
        const char *name = rk_refusal_name((enum rk_refusal)kind);
        bool rare = kind == RK_REFUSAL_SIZE;
        if (!rare || rk_json_has(&refused, name))
            plan->refused[kind] = read_integer(reader, &refused, name, rare ? 1 : 0, RK_PLAN_WHOLE_MAX);
    }
    close_object(reader, &refused);
    size_t count;
    const cJSON *array = read_array(reader, &object, "examples", 0, RK_PLAN_EXAMPLES_MAX, &count);
    if (array == NULL)
        return;
    plan->examples = allocate(reader, count, sizeof *plan->examples);
    const cJSON *item = array->child;
    for (size_t i = 0; i < count && reader->status == RK_OK; i++, item = item->next) {
        read_example(reader, item, i, &plan->examples[i]);
        plan->example_count = i + 1;
    }
    close_object(reader, &object);
}

/* ---- what can be computed is compared ---- */

static void compare(struct reader *reader, int32_t stage, const char *what, int64_t written, int64_t needed) {
    if (reader->status == RK_OK && written != needed)
        reader->status =
            rk_fail(reader->error, RK_USAGE,
                    "%s: stages[%d].%s is %lld, but this program's layout of the candidate has %lld: plan again",
                    reader->name, stage, what, (long long)written, (long long)needed);
}

static void check_stage(struct reader *reader, const struct rk_plan *plan, int32_t stage) {
    struct rk_program *program = NULL;
    struct rk_memory_layout layout = {0};
    reader->status = rk_program_lower(&plan->architecture, &plan->candidate, stage, &program, reader->error);
    if (reader->status == RK_OK)
        reader->status = rk_memory_layout_make(program, &layout, reader->error);
    if (reader->status != RK_OK)
        rk_fail_context(reader->error, "%s: candidate", reader->name);
    if (reader->status == RK_OK) {
        char what[48];
        compare(reader, stage, "arena_bytes", plan->arena_bytes[stage], layout.arena_bytes);
        compare(reader, stage, "host_bytes", plan->host_bytes[stage], layout.host_bytes);
        for (int owner = 0; owner < RK_OWNER_COUNT; owner++) {
            snprintf(what, sizeof what, "owner_bytes.%s", rk_owner_name((enum rk_owner)owner));
            compare(reader, stage, what, plan->owner_bytes[stage][owner], layout.owner_bytes[owner]);
        }
    }
    rk_memory_layout_free(&layout);
    rk_program_free(program);
}

static void check_plan(struct reader *reader, const struct rk_plan *plan) {
    const struct rk_candidate *candidate = &plan->candidate;
    if (reader->status == RK_OK) {
        struct rk_error reason = {0};
        enum rk_status status = rk_candidate_check(&plan->architecture, candidate, &reason);
        if (status == RK_OK)
            status = rk_candidate_check_sizes(&plan->architecture, candidate, &reason);
        if (status != RK_OK)
            reader->status = rk_fail(reader->error, RK_USAGE, "%s: candidate: %s", reader->name, reason.text);
    }
    if (reader->status == RK_OK && (plan->low > plan->seconds || plan->high < plan->seconds))
        reader->status = rk_fail(reader->error, RK_USAGE, "%s: step_seconds: %g is not between low %g and high %g",
                                 reader->name, plan->seconds, plan->low, plan->high);
    if (reader->status != RK_OK)
        return;
    for (int32_t s = 0; s < candidate->pipeline && reader->status == RK_OK; s++)
        check_stage(reader, plan, s);
}

enum rk_status rk_plan_read(const char *name, const char *text, size_t length, struct rk_plan **plan,
                            struct rk_error *error) {
    struct reader reader = {.name = name, .error = error};
    cJSON *root = NULL;
    struct rk_plan *made = calloc(1, sizeof *made);
    if (made == NULL)
        return rk_fail(error, RK_ERROR, "%s: out of memory", name);
    reader.status = rk_json_parse(name, text, length, &root, error);
    struct rk_json_object object;
    if (open_object(&reader, "", root, &object)) {
        char model[RK_ARCHITECTURE_NAME_MAX] = "";
        read_head(&reader, &object, made, model, sizeof model);
        if (reader.status == RK_OK)
            read_stages(&reader, &object, made);
        read_terms(&reader, &object, made);
        read_search(&reader, &object, made);
        read_config(&reader, &object, model, made);
        close_object(&reader, &object);
        check_plan(&reader, made);
    }
    cJSON_Delete(root);
    if (reader.status != RK_OK) {
        rk_plan_free(made);
        return reader.status;
    }
    *plan = made;
    return RK_OK;
}
