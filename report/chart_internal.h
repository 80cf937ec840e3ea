/* What the charts share. Private to report/chart*.c. */
#ifndef RK_REPORT_CHART_INTERNAL_H
#define RK_REPORT_CHART_INTERNAL_H

#include "report/chart.h"

/* Units of the view box. */
enum { RK_CHART_WIDTH = 720, RK_CHART_LEFT = 176, RK_CHART_RIGHT = 34, RK_CHART_LEGEND_LINE = 18 };

/* A round distance between ticks, about `wanted` of them over span; powers of two for bytes. */
double rk_chart_tick_step(double span, enum rk_chart_unit unit, int wanted);
void rk_chart_open(struct rk_text *html, const char *title, double width, double height);
void rk_chart_label(struct rk_text *html, double x, double y, const char *anchor, const char *text);
/* The name of a row, before the axis. */
void rk_chart_row_label(struct rk_text *html, double y, const char *text);
/* Colours and their names, from y on; wraps at the right edge. A NULL name is passed over, its colour kept. */
void rk_chart_legend(struct rk_text *html, const char *const *names, size_t count, double y);
double rk_chart_legend_height(const char *const *names, size_t count);
/* Grid lines and values of a horizontal axis from low to high. */
void rk_chart_value_axis(struct rk_text *html, enum rk_chart_unit unit, double low, double high, double top,
                         double bottom);
void rk_chart_bar(struct rk_text *html, size_t colour, double x, double y, double width, double height,
                  const char *name, const char *value);

#endif
