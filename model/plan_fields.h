/* The members of a plan's objects, in the order in which they are written: one table for writing and reading each.
 * Private to model/plan*.c. */
#ifndef RK_MODEL_PLAN_FIELDS_H
#define RK_MODEL_PLAN_FIELDS_H

#include "base/json.h"
#include "model/plan.h"

#define RK_PLAN_FORMAT "reckon-plan"

/* Whole numbers beyond this are not exact as JSON numbers. */
#define RK_PLAN_WHOLE_MAX 9007199254740992.0

enum rk_plan_type { RK_PLAN_I32, RK_PLAN_I64, RK_PLAN_F64, RK_PLAN_BOOL, RK_PLAN_NAME };

/* Names of an enumeration. */
struct rk_plan_names {
    const char *(*name)(int value);
    int count;
};
extern const struct rk_plan_names rk_plan_recompute_names, rk_plan_type_names, rk_plan_backend_names,
    rk_plan_routing_names, rk_plan_origin_names, rk_plan_refusal_names, rk_plan_op_names, rk_plan_phase_names,
    rk_plan_family_names, rk_plan_stream_names, rk_plan_owner_names;

struct rk_plan_field {
    const char *key;
    size_t offset;
    enum rk_plan_type type;
    double minimum, maximum;
    const struct rk_plan_names *names; /* RK_PLAN_NAME: an enumeration, stored as int */
};

extern const struct rk_plan_field rk_plan_candidate_fields[], rk_plan_time_fields[], rk_plan_term_fields[],
    rk_plan_judgement_fields[];
extern const size_t rk_plan_candidate_field_count, rk_plan_time_field_count, rk_plan_term_field_count,
    rk_plan_judgement_field_count;

#endif
