/* Plans as rows: plan.json byte for byte, the candidates that were judged (the refused ones with reason, need, have and
 * unit), and the source of every priced term. Append-only. Unknown reals are NaN, unknown integers -1. */
#ifndef RK_DB_PLAN_STORE_H
#define RK_DB_PLAN_STORE_H

#include "db/calibration.h"
#include "model/plan.h"

struct rk_plan_row {
    int64_t id;
    char uuid[RK_UUID_SIZE]; /* empty when stored: one is made */
    int64_t created_us;
    int64_t campaign_id; /* 0: planned on a hardware profile */
    char reckon[64], git_revision[64];
    char model[128], hardware[128];
    int64_t ranks, sequence_tokens, global_batch_tokens;
    int64_t considered, refused; /* of the whole space; more than the rows stored when it is large */
    double predicted_seconds, predicted_low_seconds, predicted_high_seconds, predicted_tokens_per_second;
    int64_t predicted_peak_bytes;
};

/* The head of a plan made by this program, now; the identifiers are left to the store. */
void rk_plan_row_make(const struct rk_plan *plan, struct rk_plan_row *row);

struct rk_candidate_row {
    int64_t ordinal;     /* place in the ranking, 0 the best; refused ones after */
    char label[160];     /* "PP 2, EP 4, D 8, T 8192, recompute block, offload 16 %" */
    char settings[1024]; /* JSON object of the decision variables */
    char verdict[16];    /* "chosen", "feasible", "refused" */
    char reason[64];     /* rk_refusal_name; empty when not refused */
    double need, have;   /* in unit */
    char unit[16];
    char remedy[160]; /* the smallest change that would make it fit */
    bool simulated;   /* seconds come from the simulator, not the closed form */
    double seconds, low_seconds, high_seconds;
    int64_t peak_bytes; /* heaviest stage */
};
/* The row of a judged candidate. */
void rk_candidate_row_make(const struct rk_judgement *judgement, int64_t ordinal, bool chosen,
                           struct rk_candidate_row *row);

/* "memory: need 3.5, have 2.25 GiB; PP 8", for people; empty when it is not refused. Figures only with a unit. Returns
 * text. */
char *rk_candidate_row_reason(const struct rk_candidate_row *row, char *text, size_t size);

/* One priced term of the chosen candidate. */
struct rk_term_row {
    int64_t ordinal;
    char term[192];             /* rk_op_name, or "machine: launch" and the like */
    char family[32], phase[32]; /* phase empty: all */
    int64_t count;              /* per step on the stage that decides */
    double seconds;             /* per step, all of them */
    double relative_uncertainty;
    enum rk_origin origin;
    char source[256]; /* "calibration 3, 2 rows", "hardware/b300.json: ..." */
};

/* Stores a plan with its candidates and terms, all or nothing; document is the text of plan.json. *id (may be NULL) is
 * its row. At most one candidate may be chosen. */
enum rk_status rk_plan_store(struct rk_db *db, const struct rk_plan_row *row, const char *document,
                             const struct rk_candidate_row *candidates, size_t candidate_count,
                             const struct rk_term_row *terms, size_t term_count, int64_t *id, struct rk_error *error);

/* The plan whose document is this text, so that `run plan.json` finds or keeps one row; *id 0 when there is none. */
enum rk_status rk_plan_find(struct rk_db *db, const char *document, int64_t *id, struct rk_error *error);
/* Finds the plan with this text or stores it with nothing but its head (no candidates), for a plan.json that comes from
 * elsewhere. */
enum rk_status rk_plan_find_or_store(struct rk_db *db, const struct rk_plan_row *row, const char *document, int64_t *id,
                                     struct rk_error *error);

enum rk_status rk_plan_get(struct rk_db *db, int64_t id, struct rk_plan_row *row, struct rk_error *error);
/* The text of plan.json; the caller's (free). */
enum rk_status rk_plan_document(struct rk_db *db, int64_t id, char **document, struct rk_error *error);
/* Newest first; the caller's (free), as are the rows of the next two. */
enum rk_status rk_plan_list(struct rk_db *db, struct rk_plan_row **rows, size_t *count, struct rk_error *error);
enum rk_status rk_candidate_list(struct rk_db *db, int64_t plan_id, struct rk_candidate_row **rows, size_t *count,
                                 struct rk_error *error);
enum rk_status rk_term_list(struct rk_db *db, int64_t plan_id, struct rk_term_row **rows, size_t *count,
                            struct rk_error *error);

#endif
