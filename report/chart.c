/* What all charts share: values as text, axes, legends; and the bars. */
#include "report/chart_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

char *rk_chart_value(enum rk_chart_unit unit, double value, char *buffer, size_t size) {
    static const struct {
        double scale;
        const char *name;
    } seconds[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}, {1e-9, "ns"}},
      bytes[] = {{1099511627776.0, "TiB"}, {1073741824.0, "GiB"}, {1048576.0, "MiB"}, {1024.0, "KiB"}, {1, "B"}};
    if (unit == RK_CHART_PLAIN || value == 0 || !isfinite(value)) {
        const char *format = fabs(value) >= 1000 && fabs(value) < 1e9 ? "%.0f" : "%.4g";
        snprintf(buffer, size, isfinite(value) ? format : "–", value);
        return buffer;
    }
    bool time = unit == RK_CHART_SECONDS;
    size_t count = time ? sizeof seconds / sizeof seconds[0] : sizeof bytes / sizeof bytes[0];
    size_t i = 0;
    /* What rounds up to 1 of a unit is written in it. */
    while (i + 1 < count && fabs(value) < 0.99995 * (time ? seconds[i].scale : bytes[i].scale))
        i++;
    double scaled = value / (time ? seconds[i].scale : bytes[i].scale);
    snprintf(buffer, size, fabs(scaled) >= 1000 ? "%.0f %s" : "%.4g %s", scaled,
             time ? seconds[i].name : bytes[i].name);
    return buffer;
}

void rk_html_add_escaped(struct rk_text *html, const char *text) {
    for (const char *byte = text; *byte != '\0'; byte++) {
        switch (*byte) {
        case '<':
            rk_text_add(html, "&lt;");
            break;
        case '>':
            rk_text_add(html, "&gt;");
            break;
        case '&':
            rk_text_add(html, "&amp;");
            break;
        case '"':
            rk_text_add(html, "&quot;");
            break;
        case '\'':
            rk_text_add(html, "&#39;");
            break;
        default:
            /* Control characters have no meaning in HTML and may upset terminals and readers. */
            if ((unsigned char)*byte >= ' ' || *byte == '\n' || *byte == '\t')
                rk_text_add_bytes(html, byte, 1);
        }
    }
}

/* 1, 2 or 5 times a power of ten; a power of two for bytes. */
static double tick_step(double span, enum rk_chart_unit unit, int wanted) {
    double rough = span / wanted;
    if (!(rough > 0))
        return 1;
    if (unit == RK_CHART_BYTES && rough >= 1)
        return exp2(ceil(log2(rough)));
    double power = pow(10, floor(log10(rough)));
    double digit = rough / power;
    return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

size_t rk_chart_ticks(double low, double high, enum rk_chart_unit unit, int wanted, double least,
                      double ticks[RK_CHART_TICKS]) {
    double step = fmax(least, tick_step(high - low, unit, wanted));
    double first = ceil(low / step - 1e-9);
    size_t count = 0;
    while (count < RK_CHART_TICKS && (first + (double)count) * step <= high + 1e-9 * step) {
        double tick = (first + (double)count) * step;
        ticks[count++] = fabs(tick) < step / 2 ? 0 : tick;
    }
    return count;
}

void rk_chart_open(struct rk_text *html, const char *title, double width, double height) {
    rk_text_format(html, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", width, height);
    rk_html_add_escaped(html, title);
    rk_text_add(html, "\">\n");
}

void rk_chart_label(struct rk_text *html, double x, double y, const char *anchor, const char *text) {
    rk_text_format(html, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    rk_html_add_escaped(html, text);
    rk_text_add(html, "</text>\n");
}

/* About as many bytes as fit before the axis; a longer name is cut. */
void rk_chart_row_label(struct rk_text *html, double y, const char *text) {
    char cut[40];
    snprintf(cut, sizeof cut, "%.*s%s", strlen(text) > 26 ? 25 : 26, text, strlen(text) > 26 ? "…" : "");
    rk_chart_label(html, RK_CHART_LEFT - 8, y, "end", cut);
}

/* About: the widths of the reader's letters are not known here. */
static double legend_width(const char *name) {
    return 26 + 7.2 * (double)strlen(name);
}

void rk_chart_legend(struct rk_text *html, const char *const *names, size_t count, double y) {
    double x = RK_CHART_LEFT;
    for (size_t i = 0; i < count; i++) {
        if (names[i] == NULL)
            continue;
        double width = legend_width(names[i]);
        if (x + width > RK_CHART_WIDTH && x > RK_CHART_LEFT) {
            x = RK_CHART_LEFT;
            y += RK_CHART_LEGEND_LINE;
        }
        rk_text_format(html, "<rect class=\"s%zu\" x=\"%.1f\" y=\"%.1f\" width=\"11\" height=\"11\"/>\n",
                       i % RK_CHART_COLOURS, x, y - 10);
        rk_chart_label(html, x + 15, y, "start", names[i]);
        x += width;
    }
}

double rk_chart_legend_height(const char *const *names, size_t count) {
    double x = RK_CHART_LEFT;
    double height = RK_CHART_LEGEND_LINE;
    for (size_t i = 0; i < count; i++) {
        if (names[i] == NULL)
            continue;
        double width = legend_width(names[i]);
        if (x + width > RK_CHART_WIDTH && x > RK_CHART_LEFT) {
            x = RK_CHART_LEFT;
            height += RK_CHART_LEGEND_LINE;
        }
        x += width;
    }
    return height + 6;
}

void rk_chart_value_axis(struct rk_text *html, enum rk_chart_unit unit, double low, double high, double top,
                         double bottom) {
    char text[32];
    double ticks[RK_CHART_TICKS];
    size_t count = rk_chart_ticks(low, high, unit, 5, 0, ticks);
    for (size_t i = 0; i < count; i++) {
        double x = RK_CHART_LEFT + (ticks[i] - low) / (high - low) * (RK_CHART_WIDTH - RK_CHART_LEFT - RK_CHART_RIGHT);
        rk_text_format(html, "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", x, top, x,
                       bottom);
        rk_chart_label(html, x, bottom + 15, "middle", rk_chart_value(unit, ticks[i], text, sizeof text));
    }
}

void rk_chart_bar(struct rk_text *html, size_t colour, double x, double y, double width, double height,
                  const char *name, const char *value) {
    rk_text_format(html, "<rect class=\"s%zu\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"><title>",
                   colour % RK_CHART_COLOURS, x, y, fmax(width, 0.3), height);
    rk_html_add_escaped(html, name);
    rk_text_add(html, ": ");
    rk_html_add_escaped(html, value);
    rk_text_add(html, "</title></rect>\n");
}

static double scale_of(double largest) {
    return (RK_CHART_WIDTH - RK_CHART_LEFT - RK_CHART_RIGHT) / (largest > 0 ? largest : 1);
}

static double row_sum(const struct rk_chart_stack *chart, size_t row) {
    double sum = 0;
    for (size_t part = 0; part < chart->part_count; part++)
        sum += fmax(0, chart->values[row * chart->part_count + part]);
    return sum;
}

/* Names of the parts that some row has; the others are NULL. */
static size_t used_parts(const struct rk_chart_stack *chart, const char *names[RK_CHART_COLOURS]) {
    size_t count = chart->part_count < RK_CHART_COLOURS ? chart->part_count : RK_CHART_COLOURS;
    for (size_t part = 0; part < count; part++) {
        names[part] = NULL;
        for (size_t row = 0; row < chart->row_count; row++)
            if (chart->values[row * chart->part_count + part] > 0)
                names[part] = chart->parts[part];
    }
    return count;
}

void rk_chart_stack(const struct rk_chart_stack *chart, struct rk_text *html) {
    enum { ROW = 26, BAR = 18 };
    const char *names[RK_CHART_COLOURS];
    size_t name_count = used_parts(chart, names);
    double top = rk_chart_legend_height(names, name_count) + 6;
    double bottom = top + ROW * (double)chart->row_count;
    double largest = 0;
    char text[64], name[160];
    for (size_t row = 0; row < chart->row_count; row++) {
        largest = fmax(largest, row_sum(chart, row));
        if (chart->marks != NULL && isfinite(chart->marks[row]))
            largest = fmax(largest, chart->marks[row]);
    }
    double scale = scale_of(largest);
    rk_chart_open(html, chart->title, RK_CHART_WIDTH, bottom + 24);
    rk_chart_legend(html, names, name_count, 14);
    rk_chart_value_axis(html, chart->unit, 0, largest > 0 ? largest : 1, top, bottom);
    for (size_t row = 0; row < chart->row_count; row++) {
        double x = RK_CHART_LEFT, y = top + ROW * (double)row + (ROW - BAR) / 2.0;
        rk_chart_row_label(html, y + 13, chart->rows[row]);
        for (size_t part = 0; part < chart->part_count; part++) {
            double value = chart->values[row * chart->part_count + part];
            if (!(value > 0))
                continue;
            snprintf(name, sizeof name, "%s, %s", chart->rows[row], chart->parts[part]);
            rk_chart_bar(html, part, x, y, value * scale, BAR, name,
                         rk_chart_value(chart->unit, value, text, sizeof text));
            x += value * scale;
        }
        if (chart->marks != NULL && isfinite(chart->marks[row])) {
            double at = RK_CHART_LEFT + chart->marks[row] * scale;
            rk_text_format(html, "<line class=\"mark\" x1=\"%.2f\" y1=\"%.1f\" x2=\"%.2f\" y2=\"%.1f\"><title>", at,
                           y - 3, at, y + BAR + 3);
            rk_html_add_escaped(html, chart->mark_name);
            rk_text_format(html, ": %s</title></line>\n",
                           rk_chart_value(chart->unit, chart->marks[row], text, sizeof text));
        }
    }
    rk_text_add(html, "</svg>\n");
}

void rk_chart_pairs(const struct rk_chart_pairs *chart, struct rk_text *html) {
    enum { ROW = 34, BAR = 13 };
    const char *const names[] = {chart->first_name, chart->second_name};
    double top = rk_chart_legend_height(names, 2) + 6;
    double bottom = top + ROW * (double)chart->row_count;
    double largest = 0;
    char text[64], name[160];
    for (size_t row = 0; row < chart->row_count; row++) {
        largest = isfinite(chart->first[row]) ? fmax(largest, chart->first[row]) : largest;
        largest = isfinite(chart->second[row]) ? fmax(largest, chart->second[row]) : largest;
    }
    double scale = scale_of(largest);
    rk_chart_open(html, chart->title, RK_CHART_WIDTH, bottom + 24);
    rk_chart_legend(html, names, 2, 14);
    rk_chart_value_axis(html, chart->unit, 0, largest > 0 ? largest : 1, top, bottom);
    for (size_t row = 0; row < chart->row_count; row++) {
        double y = top + ROW * (double)row + 4;
        rk_chart_row_label(html, y + 17, chart->rows[row]);
        for (size_t which = 0; which < 2; which++) {
            double value = which == 0 ? chart->first[row] : chart->second[row];
            if (!isfinite(value))
                continue;
            snprintf(name, sizeof name, "%s, %s", chart->rows[row], names[which]);
            rk_chart_bar(html, which, RK_CHART_LEFT, y + BAR * (double)which, value * scale, BAR, name,
                         rk_chart_value(chart->unit, value, text, sizeof text));
        }
    }
    rk_text_add(html, "</svg>\n");
}

void rk_chart_waterfall(const char *title, enum rk_chart_unit unit, const struct rk_chart_step *steps, size_t count,
                        double from, struct rk_text *html) {
    enum { ROW = 26, BAR = 18, TOTAL_COLOUR = 0, MORE_COLOUR = 1, LESS_COLOUR = 2 };
    static const char *const names[] = {"total", "adds", "takes away"};
    double top = rk_chart_legend_height(names, 3) + 6;
    double bottom = top + ROW * (double)count;
    double low = from, high = from, level = 0;
    char text[64];
    for (size_t i = 0; i < count; i++) {
        level = steps[i].total ? steps[i].value : level + steps[i].value;
        low = fmin(low, level);
        high = fmax(high, level);
    }
    double scale = scale_of(high - low);
    rk_chart_open(html, title, RK_CHART_WIDTH, bottom + 24);
    rk_chart_legend(html, names, 3, 14);
    rk_chart_value_axis(html, unit, low, high > low ? high : low + 1, top, bottom);
    level = 0;
    for (size_t i = 0; i < count; i++) {
        double y = top + ROW * (double)i + (ROW - BAR) / 2.0;
        double start = steps[i].total ? from : level;
        double end = steps[i].total ? steps[i].value : level + steps[i].value;
        size_t colour = steps[i].total ? TOTAL_COLOUR : steps[i].value >= 0 ? MORE_COLOUR : LESS_COLOUR;
        rk_chart_row_label(html, y + 13, steps[i].label);
        rk_chart_bar(html, colour, RK_CHART_LEFT + (fmin(start, end) - low) * scale, y, fabs(end - start) * scale, BAR,
                     steps[i].label, rk_chart_value(unit, steps[i].value, text, sizeof text));
        level = end;
        if (i + 1 < count) {
            double x = RK_CHART_LEFT + (end - low) * scale;
            rk_text_format(html, "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", x, y + BAR,
                           x, y + ROW);
        }
    }
    rk_text_add(html, "</svg>\n");
}
