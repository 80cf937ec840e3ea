/* plan.json: the portable form of a plan and all that `run` needs. Versioned and canonical: reading and writing a plan
 * gives the same bytes. It holds the architecture (the config's text, so that nothing else need be found), the
 * candidate, the predicted time and memory by term and rank with origins, the machine it was made for, and the
 * runners-up and refusals in short. */
#ifndef RK_MODEL_PLAN_H
#define RK_MODEL_PLAN_H

#include "base/text.h"
#include "model/search.h"

enum { RK_PLAN_VERSION = 1, RK_PLAN_EXAMPLES_MAX = 16 };

struct rk_plan_term {
    enum rk_op_kind kind;
    int64_t count;              /* per step on the stage that decides */
    double seconds;             /* per step */
    double relative_uncertainty;
    enum rk_origin origin;
    char source[96];
};

struct rk_plan {
    char *config_text;          /* the model's config.json as canonical JSON; owned */
    struct rk_architecture architecture;
    struct rk_candidate candidate;
    char machine[64];
    int64_t calibration;        /* row id in the data base that priced it, or 0 */
    double seconds, low, high;
    struct rk_stage_time *stages;              /* predicted, one per stage; owned */
    int64_t (*owner_bytes)[RK_OWNER_COUNT];    /* predicted device bytes by owner, one row per stage; owned */
    int64_t *arena_bytes;                      /* one per stage; owned */
    int64_t *host_bytes;                       /* offload pool; one per stage; owned */
    struct rk_plan_term *terms; size_t term_count;   /* owned */
    int64_t candidates, feasible, refused[RK_REFUSAL_COUNT];
    struct rk_judgement *examples; size_t example_count; /* runners-up and the first refusal of each kind; owned */
};

/* Builds a plan from a judged candidate: lowers, lays out and simulates it. search may be NULL: no runners-up and
 * refusals then. The example of a refusal is the one nearest to the chosen candidate; of refused offload that of all
 * activations at the best known times. */
enum rk_status rk_plan_make(const struct rk_architecture *architecture, const char *config_text,
                            const struct rk_candidate *candidate, const struct rk_machine *machine,
                            const struct rk_cost_source *costs, const struct rk_search_result *search,
                            struct rk_plan **plan, struct rk_error *error);
void rk_plan_free(struct rk_plan *plan);

enum rk_status rk_plan_write(const struct rk_plan *plan, struct rk_text *text, struct rk_error *error);
/* Reads and checks a plan: unknown keys, another version, sizes that contradict a fresh lowering of the candidate are
 * refused with the key's name. name is for messages. */
enum rk_status rk_plan_read(const char *name, const char *text, size_t length, struct rk_plan **plan,
                            struct rk_error *error);

#endif
