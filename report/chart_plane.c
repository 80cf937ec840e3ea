/* Charts with two axes: lines, scatter and the timeline. */
#include "report/chart_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOP = 34, HEIGHT = 260, PLANE_LEFT = 78, LANE = 22, LANE_BAR = 16 };

static const double PLANE_WIDTH = RK_CHART_WIDTH - PLANE_LEFT - RK_CHART_RIGHT;

/* The rectangle of values that is drawn. */
struct plane {
    double x_low, x_high, y_low, y_high;
};

static double plane_x(const struct plane *plane, double x) {
    return PLANE_LEFT + (x - plane->x_low) / (plane->x_high - plane->x_low) * PLANE_WIDTH;
}

static double plane_y(const struct plane *plane, double y) {
    return TOP + HEIGHT - (y - plane->y_low) / (plane->y_high - plane->y_low) * HEIGHT;
}

/* Values that no training step has would only overflow the arithmetic of the axis. */
static bool is_drawn(double value) {
    return isfinite(value) && fabs(value) < 1e100;
}

static void widen(double value, double *low, double *high) {
    if (is_drawn(value)) {
        *low = fmin(*low, value);
        *high = fmax(*high, value);
    }
}

static struct plane measure(const struct rk_chart_lines *chart) {
    struct plane plane = {INFINITY, -INFINITY, INFINITY, -INFINITY};
    for (size_t i = 0; i < chart->series_count; i++) {
        for (size_t j = 0; j < chart->series[i].count; j++) {
            widen(chart->series[i].x[j], &plane.x_low, &plane.x_high);
            widen(chart->series[i].y[j], &plane.y_low, &plane.y_high);
        }
    }
    widen(chart->low, &plane.y_low, &plane.y_high);
    widen(chart->high, &plane.y_low, &plane.y_high);
    if (chart->from_zero)
        plane.y_low = fmin(plane.y_low, 0);
    if (!(plane.x_high > plane.x_low))
        plane.x_high = (plane.x_low = isfinite(plane.x_low) ? plane.x_low : 0) + 1;
    if (!(plane.y_high > plane.y_low)) {
        plane.y_low = isfinite(plane.y_low) ? plane.y_low : 0;
        plane.y_high = plane.y_low + (plane.y_low == 0 ? 1 : fabs(plane.y_low) * 0.1);
    }
    double margin = 0.05 * (plane.y_high - plane.y_low);
    plane.y_high += margin;
    plane.y_low -= chart->from_zero && plane.y_low == 0 ? 0 : margin;
    return plane;
}

static void add_axes(struct rk_text *html, const struct plane *plane, enum rk_chart_unit unit, const char *x_name) {
    char text[32];
    double ticks[RK_CHART_TICKS];
    size_t count = rk_chart_ticks(plane->y_low, plane->y_high, unit, 5, 0, ticks);
    for (size_t i = 0; i < count; i++) {
        double y = plane_y(plane, ticks[i]);
        rk_text_format(html, "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", PLANE_LEFT, y,
                       PLANE_LEFT + PLANE_WIDTH, y);
        rk_chart_label(html, PLANE_LEFT - 6, y + 4, "end", rk_chart_value(unit, ticks[i], text, sizeof text));
    }
    count = rk_chart_ticks(plane->x_low, plane->x_high, RK_CHART_PLAIN, 8, 1, ticks);
    for (size_t i = 0; i < count; i++) {
        snprintf(text, sizeof text, "%.0f", ticks[i]);
        rk_chart_label(html, plane_x(plane, ticks[i]), TOP + HEIGHT + 16, "middle", text);
    }
    rk_chart_label(html, PLANE_LEFT + PLANE_WIDTH / 2, TOP + HEIGHT + 34, "middle", x_name);
}

static void add_line(struct rk_text *html, const struct plane *plane, const struct rk_chart_series *series,
                     size_t colour, enum rk_chart_unit unit, const char *x_name) {
    char text[32];
    bool open = false;
    for (size_t i = 0; i < series->count; i++) {
        if (!is_drawn(series->y[i])) { /* a gap */
            rk_text_add(html, open ? "\"/>\n" : "");
            open = false;
            continue;
        }
        if (!open)
            rk_text_format(html, "<polyline class=\"l%zu\" points=\"", colour % RK_CHART_COLOURS);
        open = true;
        rk_text_format(html, "%.1f,%.1f ", plane_x(plane, series->x[i]), plane_y(plane, series->y[i]));
    }
    rk_text_add(html, open ? "\"/>\n" : "");
    for (size_t i = 0; series->count <= 200 && i < series->count; i++) {
        if (!is_drawn(series->y[i]))
            continue;
        rk_text_format(html, "<circle class=\"s%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>",
                       colour % RK_CHART_COLOURS, plane_x(plane, series->x[i]), plane_y(plane, series->y[i]));
        rk_html_add_escaped(html, series->name);
        rk_text_format(html, ", %s %.0f: %s</title></circle>\n", x_name, series->x[i],
                       rk_chart_value(unit, series->y[i], text, sizeof text));
    }
}

void rk_chart_lines(const struct rk_chart_lines *chart, struct rk_text *html) {
    struct plane plane = measure(chart);
    const char *names[RK_CHART_COLOURS];
    size_t names_count = 0;
    rk_chart_open(html, chart->title, RK_CHART_WIDTH, TOP + HEIGHT + 42);
    if (is_drawn(chart->low) && is_drawn(chart->high)) {
        double y = plane_y(&plane, chart->high);
        rk_text_format(html, "<rect class=\"band\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>",
                       PLANE_LEFT, y, PLANE_WIDTH, fmax(1, plane_y(&plane, chart->low) - y));
        rk_html_add_escaped(html, chart->band_name);
        rk_text_add(html, "</title></rect>\n");
        rk_chart_label(html, PLANE_LEFT + PLANE_WIDTH - 4, y - 4, "end", chart->band_name);
    }
    for (size_t i = 0; i < chart->series_count && i < RK_CHART_COLOURS; i++)
        names[names_count++] = chart->series[i].name;
    rk_chart_legend(html, names, names_count, 14);
    add_axes(html, &plane, chart->unit, chart->x_name);
    for (size_t i = 0; i < chart->series_count; i++)
        add_line(html, &plane, &chart->series[i], i, chart->unit, chart->x_name);
    rk_text_add(html, "</svg>\n");
}

/* The region within a relative error of the diagonal, as a polygon on logarithmic axes. */
static void add_band(struct rk_text *html, const struct plane *plane, double error) {
    double up = log10(1 + error);
    double left = plane->x_low, right = plane->x_high;
    rk_text_format(html, "<polygon class=\"band\" points=\"%.1f,%.1f %.1f,%.1f %.1f,%.1f %.1f,%.1f\"/>\n",
                   plane_x(plane, left), plane_y(plane, left + up), plane_x(plane, right), plane_y(plane, right + up),
                   plane_x(plane, right), plane_y(plane, right - up), plane_x(plane, left), plane_y(plane, left - up));
}

void rk_chart_scatter(const char *title, enum rk_chart_unit unit, const char *x_name, const char *y_name,
                      const char *const *labels, const double *x, const double *y, size_t count, struct rk_text *html) {
    double low = INFINITY, high = -INFINITY;
    char text[32], other[32];
    for (size_t i = 0; i < count; i++) {
        if (x[i] > 0 && y[i] > 0) {
            widen(log10(x[i]), &low, &high);
            widen(log10(y[i]), &low, &high);
        }
    }
    if (!isfinite(low))
        low = high = 0;
    low = floor(low);
    high = fmax(ceil(high), low + 1);
    struct plane plane = {low, high, low, high};
    rk_chart_open(html, title, RK_CHART_WIDTH, TOP + HEIGHT + 42);
    rk_text_format(html, "<clipPath id=\"plane\"><rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\"/></clipPath>\n",
                   PLANE_LEFT, TOP, PLANE_WIDTH, HEIGHT);
    rk_text_add(html, "<g clip-path=\"url(#plane)\">\n");
    add_band(html, &plane, 0.25);
    add_band(html, &plane, 0.10);
    rk_text_format(html, "<line class=\"axis\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n</g>\n",
                   plane_x(&plane, low), plane_y(&plane, low), plane_x(&plane, high), plane_y(&plane, high));
    double powers[RK_CHART_TICKS];
    size_t power_count = rk_chart_ticks(low, high, RK_CHART_PLAIN, 8, 1, powers);
    for (size_t i = 0; i < power_count; i++) {
        double across = plane_x(&plane, powers[i]), down = plane_y(&plane, powers[i]);
        rk_chart_value(unit, pow(10, powers[i]), text, sizeof text);
        rk_text_format(html,
                       "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n"
                       "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>\n",
                       PLANE_LEFT, down, PLANE_LEFT + PLANE_WIDTH, down, across, TOP, across, TOP + HEIGHT);
        rk_chart_label(html, PLANE_LEFT - 6, down + 4, "end", text);
        rk_chart_label(html, across, TOP + HEIGHT + 16, "middle", text);
    }
    rk_chart_label(html, PLANE_LEFT + PLANE_WIDTH / 2, TOP + HEIGHT + 34, "middle", x_name);
    rk_chart_label(html, 4, 16, "start", y_name);
    for (size_t i = 0; i < count; i++) {
        if (!(x[i] > 0 && y[i] > 0))
            continue;
        rk_text_format(html, "<circle class=\"s0\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>",
                       plane_x(&plane, log10(x[i])), plane_y(&plane, log10(y[i])));
        rk_html_add_escaped(html, labels[i]);
        rk_text_format(html, ": %s against %s</title></circle>\n", rk_chart_value(unit, x[i], text, sizeof text),
                       rk_chart_value(unit, y[i], other, sizeof other));
    }
    rk_text_add(html, "</svg>\n");
}

/* A lane with more intervals than pixels is drawn in bins: each has the colour that fills most of it and is as high as
 * it is busy. */
enum { BINS = 850, DENSE = 340 };

struct bins {
    double busy[BINS][RK_CHART_COLOURS]; /* seconds */
};

static void fill_bins(const struct rk_chart_timeline *chart, size_t lane, double end, struct bins *bins) {
    double width = end / BINS;
    memset(bins, 0, sizeof *bins);
    for (size_t i = 0; i < chart->interval_count; i++) {
        const struct rk_chart_interval *interval = &chart->intervals[i];
        if (interval->lane != lane)
            continue;
        size_t first = (size_t)fmax(0, fmin(BINS - 1, interval->start / width));
        for (size_t bin = first; bin < BINS && (double)bin * width < interval->end; bin++) {
            double from = fmax(interval->start, (double)bin * width);
            double to = fmin(interval->end, (double)(bin + 1) * width);
            bins->busy[bin][interval->colour % RK_CHART_COLOURS] += fmax(0, to - from);
        }
    }
}

/* The colour that fills most of a bin, and the share of the bin that is busy at all, in twentieths. */
static int read_bin(const struct bins *bins, size_t bin, double width, size_t *colour) {
    double sum = 0;
    *colour = 0;
    for (size_t i = 0; i < RK_CHART_COLOURS; i++) {
        sum += bins->busy[bin][i];
        if (bins->busy[bin][i] > bins->busy[bin][*colour])
            *colour = i;
    }
    return (int)lround(20 * fmin(1, sum / width));
}

static void draw_bins(const struct rk_chart_timeline *chart, const struct bins *bins, double end, double y,
                      struct rk_text *html) {
    double width = end / BINS, scale = (RK_CHART_WIDTH - RK_CHART_LEFT - RK_CHART_RIGHT) / end;
    char text[96], from[32], to[32];
    for (size_t bin = 0, next; bin < BINS; bin = next) {
        size_t colour, other;
        int busy = read_bin(bins, bin, width, &colour);
        for (next = bin + 1; next < BINS && read_bin(bins, next, width, &other) == busy && other == colour;)
            next++;
        if (busy == 0)
            continue;
        double start = (double)bin * width, stop = (double)next * width, height = LANE_BAR * busy / 20.0;
        snprintf(text, sizeof text, "%d %% busy from %s to %s", 5 * busy,
                 rk_chart_value(RK_CHART_SECONDS, start, from, sizeof from),
                 rk_chart_value(RK_CHART_SECONDS, stop, to, sizeof to));
        rk_chart_bar(html, colour, RK_CHART_LEFT + start * scale, y + LANE_BAR - height, (stop - start) * scale, height,
                     chart->colour_names[colour], text);
    }
}

static void draw_intervals(const struct rk_chart_timeline *chart, size_t lane, double end, double y,
                           struct rk_text *html) {
    double scale = (RK_CHART_WIDTH - RK_CHART_LEFT - RK_CHART_RIGHT) / end;
    char text[96], start[32], length[32];
    for (size_t i = 0; i < chart->interval_count; i++) {
        const struct rk_chart_interval *interval = &chart->intervals[i];
        if (interval->lane != lane)
            continue;
        snprintf(text, sizeof text, "%s from %s",
                 rk_chart_value(RK_CHART_SECONDS, interval->end - interval->start, length, sizeof length),
                 rk_chart_value(RK_CHART_SECONDS, interval->start, start, sizeof start));
        rk_chart_bar(html, interval->colour, RK_CHART_LEFT + interval->start * scale, y,
                     (interval->end - interval->start) * scale, LANE_BAR, interval->label, text);
    }
}

void rk_chart_timeline(const struct rk_chart_timeline *chart, struct rk_text *html) {
    double top = rk_chart_legend_height(chart->colour_names, chart->colour_count) + 6;
    double bottom = top + LANE * (double)chart->lane_count;
    double end = chart->end > 0 ? chart->end : 1;
    struct bins *bins = malloc(sizeof *bins);
    rk_chart_open(html, chart->title, RK_CHART_WIDTH, bottom + 24);
    rk_chart_legend(html, chart->colour_names, chart->colour_count, 14);
    rk_chart_value_axis(html, RK_CHART_SECONDS, 0, end, top, bottom);
    rk_text_add(html, "<g class=\"dense\">\n");
    for (size_t lane = 0; lane < chart->lane_count; lane++) {
        double y = top + LANE * (double)lane + (LANE - LANE_BAR) / 2.0;
        size_t count = 0;
        for (size_t i = 0; i < chart->interval_count; i++)
            count += chart->intervals[i].lane == lane;
        rk_chart_row_label(html, y + 12, chart->lanes[lane]);
        if (count <= DENSE || bins == NULL) {
            draw_intervals(chart, lane, end, y, html);
        } else {
            fill_bins(chart, lane, end, bins);
            draw_bins(chart, bins, end, y, html);
        }
    }
    free(bins);
    rk_text_add(html, "</g>\n</svg>\n");
}
