/* What the charts share. Private to report/chart*.c. */
#ifndef RK_REPORT_CHART_INTERNAL_H
#define RK_REPORT_CHART_INTERNAL_H

#include "report/chart.h"

/* Units of the view box. */
enum { RK_CHART_WIDTH = 720, RK_CHART_LEFT = 176, RK_CHART_RIGHT = 34, RK_CHART_LEGEND_LINE = 18 };

enum { RK_CHART_TICKS = 24 };
/* Round values from low to high, about `wanted` of them and at least `least` apart; powers of two for bytes. Returns
 * how many. */
size_t rk_chart_ticks(double low, double high, enum rk_chart_unit unit, int wanted, double least,
                      double ticks[RK_CHART_TICKS]);
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
