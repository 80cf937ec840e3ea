/* The parts of the page. Private to report/html*.c. */
#ifndef RK_REPORT_HTML_INTERNAL_H
#define RK_REPORT_HTML_INTERNAL_H

#include "report/chart.h"
#include "report/html.h"

extern const char rk_html_style[];

/* A section is a heading, a sentence, a chart and its table beside it:
 *     rk_section_open(...); chart; rk_section_table(...); rows; rk_section_close(...). */
void rk_section_open(struct rk_text *html, const char *heading, const char *sentence);
/* columns: names separated by '|'; one that begins with '#' holds numbers. */
void rk_section_table(struct rk_text *html, const char *columns);
void rk_section_close(struct rk_text *html);
void rk_row_open(struct rk_text *html);
void rk_row_close(struct rk_text *html);
void rk_cell(struct rk_text *html, const char *text);
void rk_cell_value(struct rk_text *html, enum rk_chart_unit unit, double value);
void rk_cell_percent(struct rk_text *html, double fraction); /* "+3.1 %"; NaN: a dash */
void rk_cell_share(struct rk_text *html, double fraction);   /* "3.1 %" */
void rk_cell_integer(struct rk_text *html, int64_t value);

/* The sections, in the order of the page; each leaves itself out when it has nothing to show. */
enum rk_status rk_html_summary(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error);
enum rk_status rk_html_time(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error);
enum rk_status rk_html_ops(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error);
enum rk_status rk_html_memory(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error);
enum rk_status rk_html_steps(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error);
enum rk_status rk_html_timeline(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error);
enum rk_status rk_html_candidates(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error);
enum rk_status rk_html_terms(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error);

#endif
