/* The error of interpolation, on shapes that the interpolation has not seen. */
#ifndef RK_CALIBRATE_HOLDOUT_H
#define RK_CALIBRATE_HOLDOUT_H

#include "calibrate/campaign.h"

/* Holds out a fifth of the shapes of every op kind that has at least five (chosen by seed), predicts them from a cost
 * table of the others, stores one fit row for each kind, and writes the number of held-out shapes, the median and the
 * 90th percentile of the absolute relative error into *summary. Plans are priced from all shapes: what is held out here
 * only states the error that a shape between them may have. */
enum rk_status rk_holdout_store(struct rk_db *db, int64_t campaign, uint64_t seed, struct rk_campaign_summary *summary,
                                struct rk_error *error);

#endif
