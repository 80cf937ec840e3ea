#include "base/text.h"

#include "base/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool reserve(struct rk_text *text, size_t more) {
    if (text->failed)
        return false;
    if (more > SIZE_MAX / 2 - text->length - 1) {
        text->failed = true;
        return false;
    }
    size_t needed = text->length + more + 1;
    if (needed <= text->capacity)
        return true;
    size_t capacity = text->capacity < 64 ? 64 : text->capacity;
    while (capacity < needed)
        capacity *= 2;
    char *data = realloc(text->data, capacity);
    if (data == NULL) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void rk_text_add_bytes(struct rk_text *text, const void *bytes, size_t length) {
    if (!reserve(text, length))
        return;
    if (length > 0)
        memcpy(text->data + text->length, bytes, length);
    text->length += length;
    text->data[text->length] = '\0';
}

void rk_text_add(struct rk_text *text, const char *string) {
    rk_text_add_bytes(text, string, strlen(string));
}

void rk_text_format(struct rk_text *text, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0)
        text->failed = true;
    else if (reserve(text, (size_t)length)) {
        vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    }
    va_end(again);
}

void rk_text_free(struct rk_text *text) {
    free(text->data);
    *text = (struct rk_text){0};
}

/* A decimal number as mantissa * 10^exponent, read exactly. */
struct decimal {
    uint64_t mantissa;
    int64_t exponent;
};

static bool read_decimal(const char **cursor, struct decimal *decimal) {
    const char *at = *cursor;
    uint64_t mantissa = 0;
    int64_t exponent = 0, pending_zeros = 0;
    bool digits = false, point = false;
    for (;; at++) {
        if (*at == '.' && !point) {
            point = true;
            continue;
        }
        if (*at < '0' || *at > '9')
            break;
        digits = true;
        if (point)
            exponent--;
        /* Zeros are held back until another digit follows, so that "1.000" and "1000000...0" keep a small mantissa. */
        if (*at == '0') {
            pending_zeros += mantissa != 0;
            continue;
        }
        for (; pending_zeros > 0; pending_zeros--)
            if (__builtin_mul_overflow(mantissa, (uint64_t)10, &mantissa))
                return false;
        if (__builtin_mul_overflow(mantissa, (uint64_t)10, &mantissa) ||
            __builtin_add_overflow(mantissa, (uint64_t)(*at - '0'), &mantissa))
            return false;
    }
    if (!digits)
        return false;
    exponent += pending_zeros;
    if (*at == 'e' || *at == 'E') {
        const char *mark = ++at;
        bool negative = *at == '-';
        if (*at == '-' || *at == '+')
            mark = ++at;
        int64_t written = 0;
        for (; *at >= '0' && *at <= '9'; at++)
            written = written > 100000 ? written : written * 10 + (*at - '0');
        if (at == mark)
            return false;
        exponent += negative ? -written : written;
    }
    *decimal = (struct decimal){mantissa, exponent};
    *cursor = at;
    return true;
}

/* The factor of a suffix, advancing the cursor; 1 when there is none. */
static uint64_t read_unit(const char **cursor) {
    static const char letters[] = "KMGTP";
    char letter = **cursor == 'k' ? 'K' : **cursor;
    const char *found = letter == '\0' ? NULL : strchr(letters, letter);
    if (found == NULL)
        return 1;
    ++*cursor;
    bool binary = **cursor == 'i';
    if (binary)
        ++*cursor;
    uint64_t unit = 1;
    for (long power = found - letters; power >= 0; power--)
        unit *= binary ? 1024 : 1000;
    return unit;
}

enum scale_result { SCALED, NOT_WHOLE, TOO_LARGE };

static enum scale_result scale(struct decimal decimal, uint64_t unit, int64_t *value) {
    uint64_t mantissa = decimal.mantissa;
    if (mantissa == 0) {
        *value = 0;
        return SCALED;
    }
    for (int64_t i = decimal.exponent; i < 0; i++) {
        /* Divides mantissa * unit by 2 and by 5, each on the side that has the factor. */
        if (unit % 2 == 0)
            unit /= 2;
        else if (mantissa % 2 == 0)
            mantissa /= 2;
        else
            return NOT_WHOLE;
        if (unit % 5 == 0)
            unit /= 5;
        else if (mantissa % 5 == 0)
            mantissa /= 5;
        else
            return NOT_WHOLE;
    }
    for (int64_t i = decimal.exponent; i > 0; i--)
        if (__builtin_mul_overflow(mantissa, (uint64_t)10, &mantissa))
            return TOO_LARGE;
    if (__builtin_mul_overflow(mantissa, unit, &mantissa) || mantissa > INT64_MAX)
        return TOO_LARGE;
    *value = (int64_t)mantissa;
    return SCALED;
}

static enum rk_status parse_whole(const char *what, const char *string, bool bytes, int64_t *value,
                                  struct rk_error *error) {
    const char *examples = bytes ? "write bytes such as 4096, 96MiB, 1.5GiB or 500MB"
                                 : "write a whole number such as 64, 64Ki, 1.5Mi, 2Gi, 500K or 1e6";
    if (string[0] == '-')
        return rk_fail(error, RK_USAGE, "%s: '%.80s' is negative; %s", what, string, examples);
    const char *cursor = string;
    struct decimal decimal;
    if (!read_decimal(&cursor, &decimal))
        return rk_fail(error, RK_USAGE, "%s: '%.80s' is not a %s; %s", what, string, bytes ? "size" : "count",
                       examples);
    uint64_t unit = read_unit(&cursor);
    if (bytes && *cursor == 'B')
        cursor++;
    if (*cursor != '\0')
        return rk_fail(error, RK_USAGE, "%s: '%.80s' ends in '%.20s', which is no unit; %s", what, string, cursor,
                       examples);
    switch (scale(decimal, unit, value)) {
    case NOT_WHOLE:
        return rk_fail(error, RK_USAGE, "%s: '%.80s' is not a whole number%s; %s", what, string,
                       bytes ? " of bytes" : "", examples);
    case TOO_LARGE:
        return rk_fail(error, RK_USAGE, "%s: '%.80s' is too large; the highest value is 9223372036854775807", what,
                       string);
    case SCALED:
        break;
    }
    return RK_OK;
}

enum rk_status rk_parse_count(const char *what, const char *string, int64_t *value, struct rk_error *error) {
    return parse_whole(what, string, false, value, error);
}

enum rk_status rk_parse_bytes(const char *what, const char *string, int64_t *value, struct rk_error *error) {
    return parse_whole(what, string, true, value, error);
}

enum rk_status rk_parse_number(const char *what, const char *string, double minimum, double maximum, double *value,
                               struct rk_error *error) {
    /* strtod also takes blanks, hexadecimal, "inf" and "nan": only decimal digits come through. */
    bool plain = string[0] != '\0' && strspn(string, "+-.0123456789eE") == strlen(string);
    char *end = NULL;
    double parsed = plain ? strtod(string, &end) : 0;
    if (!plain || *end != '\0')
        return rk_fail(error, RK_USAGE, "%s: '%.80s' is not a number; write a decimal number such as 1.25", what,
                       string);
    if (!isfinite(parsed))
        return rk_fail(error, RK_USAGE, "%s: '%.80s' is too large for a number", what, string);
    if (parsed < minimum || parsed > maximum)
        return rk_fail(error, RK_USAGE, "%s: %.80s is outside %g to %g", what, string, minimum, maximum);
    *value = parsed;
    return RK_OK;
}

bool rk_ends_in(const char *name, const char *ending) {
    size_t length = strlen(name), end = strlen(ending);
    return length > end && strcmp(name + length - end, ending) == 0;
}

char *rk_format_bytes(int64_t bytes, char *buffer, size_t size) {
    static const struct {
        const char *name;
        double bytes;
        int decimals;
    } units[] = {{"KiB", 0x1p10, 1}, {"MiB", 0x1p20, 1}, {"GiB", 0x1p30, 2}, {"TiB", 0x1p40, 2}, {"PiB", 0x1p50, 2}};
    enum { COUNT = sizeof units / sizeof units[0] };
    double magnitude = fabs((double)bytes);
    if (magnitude < 1024) {
        snprintf(buffer, size, "%lld B", (long long)bytes);
        return buffer;
    }
    size_t unit = 0;
    /* Half a last digit below the next unit already prints as 1024.0: take the next one. */
    while (unit + 1 < COUNT &&
           magnitude >= units[unit + 1].bytes - 0.5 * pow(10, -units[unit].decimals) * units[unit].bytes)
        unit++;
    snprintf(buffer, size, "%.*f %s", units[unit].decimals, (double)bytes / units[unit].bytes, units[unit].name);
    return buffer;
}

char *rk_format_seconds(double seconds, char *buffer, size_t size) {
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"ns", 1e-9}, {"µs", 1e-6}, {"ms", 1e-3}, {"s", 1}};
    enum { COUNT = sizeof units / sizeof units[0] };
    if (!isfinite(seconds)) {
        snprintf(buffer, size, "unknown");
        return buffer;
    }
    if (seconds == 0) {
        snprintf(buffer, size, "0 s");
        return buffer;
    }
    size_t unit = 0;
    while (unit + 1 < COUNT && fabs(seconds) >= 0.9999995 * units[unit + 1].seconds)
        unit++;
    snprintf(buffer, size, "%.3f %s", seconds / units[unit].seconds, units[unit].name);
    return buffer;
}

static enum rk_status read_all(int descriptor, const char *path, size_t limit, size_t expected, char **data,
                               size_t *length, struct rk_error *error) {
    size_t capacity = (expected < limit ? expected : limit) + 2;
    size_t used = 0;
    char *bytes = malloc(capacity);
    enum rk_status status = RK_OK;
    while (bytes != NULL) {
        ssize_t got = read(descriptor, bytes + used, capacity - 1 - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            status = rk_fail(error, RK_ERROR, "%s: cannot read: %s", path, strerror(errno));
            goto free_bytes;
        }
        if (got == 0) {
            bytes[used] = '\0';
            *data = bytes;
            *length = used;
            return RK_OK;
        }
        used += (size_t)got;
        if (used > limit) {
            status =
                rk_fail(error, RK_USAGE,
                        "%s: larger than the %zu bytes that such a file may have; is it the right file?", path, limit);
            goto free_bytes;
        }
        if (used == capacity - 1) {
            capacity *= 2;
            char *larger = realloc(bytes, capacity);
            if (larger == NULL)
                break;
            bytes = larger;
        }
    }
    status = rk_fail(error, RK_ERROR, "%s: not enough memory to read it", path);
free_bytes:
    free(bytes);
    return status;
}

enum rk_status rk_read_file(const char *path, size_t limit, char **data, size_t *length, struct rk_error *error) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return rk_fail(error, RK_USAGE, "%s: cannot open: %s; check the name and its permissions", path,
                       strerror(errno));
    struct stat information;
    enum rk_status status;
    if (fstat(descriptor, &information) != 0)
        status = rk_fail(error, RK_ERROR, "%s: cannot examine: %s", path, strerror(errno));
    else if (S_ISDIR(information.st_mode))
        status = rk_fail(error, RK_USAGE, "%s: is a folder; give the name of a file in it", path);
    else
        status = read_all(descriptor, path, limit, information.st_size > 0 ? (size_t)information.st_size : 4096, data,
                          length, error);
    close(descriptor);
    return status;
}

enum rk_status rk_write_file(const char *path, const void *data, size_t length, struct rk_error *error) {
    struct rk_atomic_file file;
    enum rk_status status = rk_atomic_file_open(path, &file, error);
    if (status == RK_OK)
        status = rk_atomic_file_write(&file, data, length, error);
    if (status == RK_OK)
        status = rk_atomic_file_commit(&file, error);
    rk_atomic_file_abandon(&file);
    return status;
}
