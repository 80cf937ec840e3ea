/* Failures that all ranks learn of together, outside steps: a rank that fails alone would leave its peers waiting. */
#ifndef RK_EXECUTOR_AGREEMENT_H
#define RK_EXECUTOR_AGREEMENT_H

#include "executor/launch.h"

/* Collective. Returns RK_OK on all ranks when status is RK_OK on all of them. Else every rank returns the failure of
 * the lowest rank that failed; *error holds its text with the rank's number (on that rank itself the text as it was). A
 * rank whose status is RK_RANK_FAILED returns at once: it must end, which the others notice. */
enum rk_status rk_job_agree(struct rk_job *job, enum rk_status status, struct rk_error *error);

#endif
