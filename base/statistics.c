#include "base/statistics.h"

#include <gsl/gsl_cdf.h>
#include <gsl/gsl_sort_double.h>
#include <gsl/gsl_statistics_double.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void rk_statistics_sort(double *samples, size_t count) {
    gsl_sort(samples, 1, count);
}

double rk_statistics_median_sorted(const double *sorted, size_t count) {
    return gsl_stats_median_from_sorted_data(sorted, 1, count);
}

double rk_statistics_quantile_sorted(const double *sorted, size_t count, double fraction) {
    return gsl_stats_quantile_from_sorted_data(sorted, 1, count, fraction);
}

struct rk_interval rk_statistics_median_interval_sorted(const double *sorted, size_t count, double confidence,
                                                        double *coverage) {
    double tail = (1 - confidence) / 2;
    unsigned int n = (unsigned int)count;
    /* P(B <= r - 1) grows with r up to the median: halving finds the last r that keeps it within the tail. */
    unsigned int low = 0, high = n / 2;
    while (low < high) {
        unsigned int middle = high - (high - low) / 2;
        if (gsl_cdf_binomial_P(middle - 1, 0.5, n) <= tail)
            low = middle;
        else
            high = middle - 1;
    }
    unsigned int r = low > 0 ? low : 1;
    if (coverage != NULL)
        *coverage = fmax(0, 1 - 2 * gsl_cdf_binomial_P(r - 1, 0.5, n));
    return (struct rk_interval){sorted[r - 1], sorted[count - r]};
}

/* A sorted copy, the caller's to free. */
static enum rk_status sorted_copy(const double *samples, size_t count, double **sorted, struct rk_error *error) {
    if (count == 0)
        return rk_fail(error, RK_USAGE, "statistics: there are no samples");
    for (size_t i = 0; i < count; i++)
        if (isnan(samples[i]))
            return rk_fail(error, RK_USAGE, "statistics: sample %zu of %zu is not a number", i + 1, count);
    double *copy = malloc(count * sizeof *copy);
    if (copy == NULL)
        return rk_fail(error, RK_ERROR, "statistics: not enough memory for %zu samples", count);
    memcpy(copy, samples, count * sizeof *copy);
    gsl_sort(copy, 1, count);
    *sorted = copy;
    return RK_OK;
}

enum rk_status rk_statistics_median(const double *samples, size_t count, double *median, struct rk_error *error) {
    return rk_statistics_quantile(samples, count, 0.5, median, error);
}

enum rk_status rk_statistics_quantile(const double *samples, size_t count, double fraction, double *quantile,
                                      struct rk_error *error) {
    double *sorted = NULL;
    enum rk_status status = sorted_copy(samples, count, &sorted, error);
    if (sorted == NULL)
        return status;
    *quantile = rk_statistics_quantile_sorted(sorted, count, fraction);
    free(sorted);
    return RK_OK;
}

enum rk_status rk_statistics_median_interval(const double *samples, size_t count, double confidence, double *median,
                                             struct rk_interval *interval, struct rk_error *error) {
    double *sorted = NULL;
    enum rk_status status = sorted_copy(samples, count, &sorted, error);
    if (sorted == NULL)
        return status;
    *median = rk_statistics_median_sorted(sorted, count);
    *interval = rk_statistics_median_interval_sorted(sorted, count, confidence, NULL);
    free(sorted);
    return RK_OK;
}

enum rk_status rk_statistics_rank_correlation(const double *x, const double *y, size_t count, double *correlation,
                                              struct rk_error *error) {
    if (count < 2)
        return rk_fail(error, RK_USAGE, "statistics: a rank correlation needs two pairs or more, not %zu", count);
    double *work = malloc(2 * count * sizeof *work);
    if (work == NULL)
        return rk_fail(error, RK_ERROR, "statistics: not enough memory for %zu samples", count);
    double result = gsl_stats_spearman(x, 1, y, 1, count, work);
    free(work);
    if (!isfinite(result))
        return rk_fail(error, RK_USAGE, "statistics: a rank correlation needs values that differ on both sides");
    *correlation = result;
    return RK_OK;
}
