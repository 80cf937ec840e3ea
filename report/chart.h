/* Charts as inline SVG, without script: bars, waterfalls, lines, scatter and timeline.
 *
 * All text is escaped. Colours are CSS classes (s0 to s11 for series, defined in html_style.c for light and dark
 * pages), the text takes the page's colour, and every mark carries its value as a <title>, which browsers show on
 * hovering. Values that are NaN are left out. */
#ifndef RK_REPORT_CHART_H
#define RK_REPORT_CHART_H

#include "base/text.h"

#include <stdbool.h>

enum { RK_CHART_COLOURS = 12 };

/* What a value means, for axes and titles. */
enum rk_chart_unit { RK_CHART_SECONDS, RK_CHART_BYTES, RK_CHART_PLAIN };
/* "1.25 ms", "13.3 GiB", "5.512". Returns buffer. */
char *rk_chart_value(enum rk_chart_unit unit, double value, char *buffer, size_t size);

/* Appends text with the five characters that HTML reserves replaced. */
void rk_html_add_escaped(struct rk_text *html, const char *text);

/* One bar a row, made of parts; part p of row r is values[r * part_count + p]. marks (may be NULL) sets a line across
 * each row, named mark_name, such as what was really allocated. */
struct rk_chart_stack {
    const char *title; /* for readers of the page aloud */
    enum rk_chart_unit unit;
    const char *const *rows;
    size_t row_count;
    const char *const *parts;
    size_t part_count;
    const double *values;
    const double *marks;
    const char *mark_name;
};
void rk_chart_stack(const struct rk_chart_stack *chart, struct rk_text *html);

/* Two bars a row. */
struct rk_chart_pairs {
    const char *title;
    enum rk_chart_unit unit;
    const char *const *rows;
    size_t row_count;
    const char *first_name, *second_name;
    const double *first, *second;
};
void rk_chart_pairs(const struct rk_chart_pairs *chart, struct rk_text *html);

/* Steps that add up: each starts where the last one ended, a total starts at the axis' beginning, from. */
struct rk_chart_step {
    const char *label;
    double value; /* of a total: its own end */
    bool total;
};
void rk_chart_waterfall(const char *title, enum rk_chart_unit unit, const struct rk_chart_step *steps, size_t count,
                        double from, struct rk_text *html);

/* Lines over x. */
struct rk_chart_series {
    const char *name;
    const double *x, *y;
    size_t count;
};
struct rk_chart_lines {
    const char *title, *x_name;
    enum rk_chart_unit unit;
    const struct rk_chart_series *series;
    size_t series_count;
    double low, high; /* a band over all x, named band_name; NaN: none */
    const char *band_name;
    bool from_zero; /* the y axis begins at 0 */
};
void rk_chart_lines(const struct rk_chart_lines *chart, struct rk_text *html);

/* Points on two logarithmic axes of one scale, with the diagonal and bands of 10 and 25 % around it. */
void rk_chart_scatter(const char *title, enum rk_chart_unit unit, const char *x_name, const char *y_name,
                      const char *const *labels, const double *x, const double *y, size_t count, struct rk_text *html);

/* Intervals on lanes. A lane with more intervals than pixels is summed up: colours say what fills most of the time
 * there, heights how busy the lane is. */
struct rk_chart_interval {
    size_t lane;
    size_t colour; /* index into colour_names */
    double start, end;
    const char *label;
};
struct rk_chart_timeline {
    const char *title;
    const char *const *lanes;
    size_t lane_count;
    const char *const *colour_names;
    size_t colour_count;
    const struct rk_chart_interval *intervals;
    size_t interval_count;
    double end; /* seconds */
};
void rk_chart_timeline(const struct rk_chart_timeline *chart, struct rk_text *html);

#endif
