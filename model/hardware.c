#include "model/hardware.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *key;
    const char *unit;
} figure_rows[RK_HARDWARE_FIGURE_COUNT] = {
#define RK_FIGURE_ROW(name, key, unit, minimum, maximum) [RK_HARDWARE_##name] = {key, unit},
    RK_HARDWARE_FIGURE_TABLE(RK_FIGURE_ROW)
#undef RK_FIGURE_ROW
};

static const struct {
    enum rk_origin origin;
    double relative_uncertainty;
} origin_rows[RK_PROFILE_ORIGIN_COUNT] = {
#define RK_ORIGIN_ROW(name, text, origin, uncertainty) [RK_PROFILE_ORIGIN_##name] = {origin, uncertainty},
    RK_PROFILE_ORIGIN_TABLE(RK_ORIGIN_ROW)
#undef RK_ORIGIN_ROW
};

const char *rk_hardware_figure_key(enum rk_hardware_figure figure) {
    return figure_rows[figure].key;
}

const char *rk_hardware_figure_unit(enum rk_hardware_figure figure) {
    return figure_rows[figure].unit;
}

const struct rk_profile_figure *rk_hardware_figure(const struct rk_hardware *hardware, enum rk_hardware_figure figure) {
    return hardware->figures[figure].known ? &hardware->figures[figure] : NULL;
}

const struct rk_published_time *rk_hardware_published(const struct rk_hardware *hardware, enum rk_published_kind kind,
                                                      const struct rk_architecture *architecture, int64_t tokens) {
    const struct rk_architecture *a = architecture;
    if (a->attention != RK_ATTENTION_GQA) {
        return NULL;
    }
    for (int64_t i = 0; i < hardware->published_count; i++) {
        const struct rk_published_time *row = &hardware->published[i];
        const bool same_layers = kind != RK_PUBLISHED_MICRO_BATCH || row->layers == a->layers;
        if (row->kind == kind && row->tokens == tokens && row->hidden == a->hidden &&
            row->query_width == rk_architecture_query_width(a) && row->kv_width == rk_architecture_kv_width(a) &&
            row->expert_hidden == a->expert_hidden && row->shared_hidden == a->shared_hidden &&
            row->top_k == a->top_k && same_layers) {
            return row;
        }
    }
    return NULL;
}

struct rk_figure rk_hardware_term(const struct rk_profile_figure *figure, const char *profile) {
    struct rk_figure term = {.origin = RK_ORIGIN_SPECIFICATION};
    if (figure == NULL || !figure->known) {
        return term;
    }
    const double half_range = figure->value > 0.0 ? (figure->high - figure->low) / (2.0 * figure->value) : 0.0;
    term.value = figure->value;
    term.origin = origin_rows[figure->origin].origin;
    term.relative_uncertainty = fmax(half_range, origin_rows[figure->origin].relative_uncertainty);
    snprintf(term.source, sizeof term.source, "%s: %.60s", profile, figure->source);
    return term;
}

static struct rk_figure term_of(const struct rk_hardware *hardware, enum rk_hardware_figure figure) {
    return rk_hardware_term(rk_hardware_figure(hardware, figure), hardware->name);
}

static int64_t bytes_of(const struct rk_hardware *hardware, enum rk_hardware_figure figure) {
    const struct rk_profile_figure *found = rk_hardware_figure(hardware, figure);
    return found != NULL ? (int64_t)found->value : 0;
}

/* A link is as fast as it was measured; its data sheet counts only where nobody measured. */
static struct rk_figure link_of(const struct rk_hardware *hardware, enum rk_hardware_figure measured,
                                enum rk_hardware_figure specification) {
    return term_of(hardware, rk_hardware_figure(hardware, measured) != NULL ? measured : specification);
}

enum rk_status rk_hardware_machine(const struct rk_hardware *hardware, struct rk_machine *machine,
                                   struct rk_error *error) {
    static const enum rk_hardware_figure required[] = {RK_HARDWARE_MEMORY, RK_HARDWARE_PEAK_BF16,
                                                       RK_HARDWARE_GPUS_PER_NODE};
    struct rk_text missing = {0};
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        if (rk_hardware_figure(hardware, required[i]) == NULL) {
            rk_text_format(&missing, "%s%s", missing.length > 0 ? ", " : "", rk_hardware_figure_key(required[i]));
        }
    }
    if (missing.length > 0 || missing.failed) {
        enum rk_status status =
            rk_fail(error, RK_USAGE, "hardware profile %s: a plan needs %s; add the figures with origin and source",
                    hardware->name, missing.data != NULL ? missing.data : "more figures");
        rk_text_free(&missing);
        return status;
    }
    struct rk_machine made = {.backend = RK_BACKEND_CUDA};
    memcpy(made.name, hardware->name, sizeof made.name);
    made.devices_per_host = (int32_t)hardware->figures[RK_HARDWARE_GPUS_PER_NODE].value;
    made.memory_bytes = bytes_of(hardware, RK_HARDWARE_MEMORY);
    made.reserved_bytes = bytes_of(hardware, RK_HARDWARE_RESERVED) + bytes_of(hardware, RK_HARDWARE_OVERHEAD);
    made.host_memory_bytes = bytes_of(hardware, RK_HARDWARE_HOST_MEMORY);
    made.d2h = link_of(hardware, RK_HARDWARE_D2H_MEASURED, RK_HARDWARE_D2H_SPECIFICATION);
    made.h2d = link_of(hardware, RK_HARDWARE_H2D_MEASURED, RK_HARDWARE_H2D_SPECIFICATION);
    made.d2h_specification = term_of(hardware, RK_HARDWARE_D2H_SPECIFICATION);
    made.h2d_specification = term_of(hardware, RK_HARDWARE_H2D_SPECIFICATION);
    made.both_directions = term_of(hardware, RK_HARDWARE_BOTH_DIRECTIONS);
    made.launch = term_of(hardware, RK_HARDWARE_LAUNCH);
    made.host_wait = term_of(hardware, RK_HARDWARE_HOST_WAIT);
    made.dense_peak = term_of(hardware, RK_HARDWARE_PEAK_BF16);
    *machine = made;
    return RK_OK;
}
