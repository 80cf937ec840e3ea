/* Sections, tables and cells. */
#include "report/html_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void rk_section_open(struct rk_text *html, const char *heading, const char *sentence) {
    rk_text_add(html, "<section>\n<h2>");
    rk_html_add_escaped(html, heading);
    rk_text_add(html, "</h2>\n<p>");
    rk_html_add_escaped(html, sentence);
    rk_text_add(html, "</p>\n<div class=\"pair\">\n<figure>\n");
}

void rk_section_table(struct rk_text *html, const char *columns) {
    rk_text_add(html, "</figure>\n<div class=\"table\"><table>\n<thead><tr>");
    for (const char *name = columns; *name != '\0';) {
        size_t length = strcspn(name, "|");
        char text[64];
        bool number = name[0] == '#';
        snprintf(text, sizeof text, "%.*s", (int)(length - (number ? 1 : 0)), name + (number ? 1 : 0));
        rk_text_add(html, number ? "<th class=\"n\">" : "<th>");
        rk_html_add_escaped(html, text);
        rk_text_add(html, "</th>");
        name += length + (name[length] == '|');
    }
    rk_text_add(html, "</tr></thead>\n<tbody>\n");
}

void rk_section_close(struct rk_text *html) {
    rk_text_add(html, "</tbody></table></div>\n</div>\n</section>\n");
}

void rk_row_open(struct rk_text *html) {
    rk_text_add(html, "<tr>");
}

void rk_row_close(struct rk_text *html) {
    rk_text_add(html, "</tr>\n");
}

void rk_cell(struct rk_text *html, const char *text) {
    rk_text_add(html, "<td>");
    rk_html_add_escaped(html, text);
    rk_text_add(html, "</td>");
}

static void number_cell(struct rk_text *html, const char *text) {
    rk_text_format(html, "<td class=\"n\">%s</td>", text);
}

void rk_cell_value(struct rk_text *html, enum rk_chart_unit unit, double value) {
    char text[48];
    number_cell(html, rk_chart_value(unit, value, text, sizeof text));
}

void rk_cell_percent(struct rk_text *html, double fraction) {
    char text[48];
    snprintf(text, sizeof text, isfinite(fraction) ? "%+.1f %%" : "–", 100 * fraction);
    number_cell(html, text);
}

void rk_cell_share(struct rk_text *html, double fraction) {
    char text[48];
    snprintf(text, sizeof text, isfinite(fraction) ? "%.1f %%" : "–", 100 * fraction);
    number_cell(html, text);
}

void rk_cell_integer(struct rk_text *html, int64_t value) {
    char text[48];
    snprintf(text, sizeof text, value < 0 ? "–" : "%" PRId64, value);
    number_cell(html, text);
}
