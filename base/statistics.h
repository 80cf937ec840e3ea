/* Order statistics of measured samples, over GSL. Samples are not changed. All need count >= 1 unless said. */
#ifndef RK_BASE_STATISTICS_H
#define RK_BASE_STATISTICS_H

#include "base/status.h"

#include <stddef.h>

struct rk_interval {
    double low;
    double high;
};

/* Sorts ascending in place. Samples must not hold NaN. */
void rk_statistics_sort(double *samples, size_t count);

/* Of samples that are sorted. The quantile interpolates linearly at fraction * (count - 1), fraction in [0, 1]. */
double rk_statistics_median_sorted(const double *sorted, size_t count);
double rk_statistics_quantile_sorted(const double *sorted, size_t count, double fraction);

/* The confidence interval of the median from order statistics, free of any distribution: [x(r), x(n+1-r)] with the
 * largest r for which P(Binomial(n, 1/2) < r) <= (1 - confidence) / 2. Below six samples (at 95 %) no such r exists:
 * the whole range is returned and the coverage is what it is. *coverage (may be NULL) is the exact one, 1 - 2 P(B < r).
 */
struct rk_interval rk_statistics_median_interval_sorted(const double *sorted, size_t count, double confidence,
                                                        double *coverage);

/* Of samples in any order; fail only when memory runs out (RK_ERROR) or count is 0 or a sample is NaN (RK_USAGE). */
enum rk_status rk_statistics_median(const double *samples, size_t count, double *median, struct rk_error *error);
enum rk_status rk_statistics_quantile(const double *samples, size_t count, double fraction, double *quantile,
                                      struct rk_error *error);
enum rk_status rk_statistics_median_interval(const double *samples, size_t count, double confidence, double *median,
                                             struct rk_interval *interval, struct rk_error *error);

/* Spearman's rank correlation, ties get their mean rank; count >= 2 (RK_USAGE below, or when one side is constant). */
enum rk_status rk_statistics_rank_correlation(const double *x, const double *y, size_t count, double *correlation,
                                              struct rk_error *error);

#endif
