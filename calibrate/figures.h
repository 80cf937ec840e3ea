/* Figures of the machine that are no ops: launch, host wait, copies in both directions at once. */
#ifndef RK_CALIBRATE_FIGURES_H
#define RK_CALIBRATE_FIGURES_H

#include "calibrate/measure.h"
#include "db/calibration.h"

/* Collective. Stores on the rank that has the data base (db not NULL). */
enum rk_status rk_figures_measure(const struct rk_measurer *measurer, struct rk_db *db, int64_t campaign,
                                  struct rk_error *error);

#endif
