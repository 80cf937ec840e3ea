#include "executor/launch_slurm.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { DIGITS_MAX = 9 }; /* of a number in a range: fits 32 bits */

/* A reader of the list; a position that never leaves the string. */
struct reader {
    const char *list, *at;
    struct rk_error *error;
};

static enum rk_status fail_at(const struct reader *reader, const char *what) {
    return rk_fail(reader->error, RK_USAGE, "Slurm's host list \"%.120s\": %s at character %zu", reader->list, what,
                   (size_t)(reader->at - reader->list) + 1);
}

/* One number with its width: leading zeros are part of the name. */
static enum rk_status read_number(struct reader *reader, int64_t *value, int *width) {
    int64_t number = 0;
    int digits = 0;
    while (isdigit((unsigned char)*reader->at)) {
        if (++digits > DIGITS_MAX)
            return fail_at(reader, "a number is too long");
        number = number * 10 + (*reader->at++ - '0');
    }
    if (digits == 0)
        return fail_at(reader, "a number is missing");
    *value = number;
    *width = digits;
    return RK_OK;
}

/* The inside of brackets. Counts its numbers; when index is among them, writes that one. The reader ends behind ']'. */
static enum rk_status read_ranges(struct reader *reader, int64_t index, char *text, size_t size, int64_t *count) {
    *count = 0;
    for (reader->at++;; reader->at++) {
        int64_t first = 0, last = 0;
        int width = 0, last_width = 0;
        enum rk_status status = read_number(reader, &first, &width);
        if (status != RK_OK)
            return status;
        last = first;
        if (*reader->at == '-') {
            reader->at++;
            status = read_number(reader, &last, &last_width);
            if (status != RK_OK)
                return status;
            if (last < first)
                return fail_at(reader, "a range runs backwards");
        }
        if (index >= *count && index - *count <= last - first)
            snprintf(text, size, "%0*lld", width, (long long)(first + index - *count));
        *count += last - first + 1;
        if (*count > RK_SLURM_HOSTS_MAX)
            return fail_at(reader, "there are too many hosts");
        if (*reader->at == ']')
            break;
        if (*reader->at != ',')
            return fail_at(reader, "',', '-' or ']' is missing");
    }
    reader->at++;
    return RK_OK;
}

static bool is_name_character(char character) {
    return isalnum((unsigned char)character) || character == '.' || character == '-' || character == '_';
}

/* Numbers of hosts that the brackets from here to the end of the element stand for. */
static enum rk_status count_element(struct reader reader, int64_t *count, const char **end) {
    *count = 1;
    const char *start = reader.at;
    while (*reader.at != '\0' && *reader.at != ',') {
        if (is_name_character(*reader.at)) {
            reader.at++;
            continue;
        }
        if (*reader.at != '[')
            return fail_at(&reader, "a character that no host name has stands");
        int64_t numbers;
        char unused[16];
        enum rk_status status = read_ranges(&reader, -1, unused, sizeof unused, &numbers);
        if (status != RK_OK)
            return status;
        if (numbers < 1 || *count > RK_SLURM_HOSTS_MAX / numbers)
            return fail_at(&reader, "there are too many hosts");
        *count *= numbers;
    }
    if (reader.at == start)
        return fail_at(&reader, "a host name is missing");
    *end = reader.at;
    return RK_OK;
}

/* Writes the host at the index of an element that count_element has found right. */
static enum rk_status write_element(struct reader reader, int64_t index, int64_t count, char *host, size_t size) {
    size_t used = 0;
    while (*reader.at != '\0' && *reader.at != ',') {
        char part[16] = {*reader.at, '\0'};
        if (*reader.at == '[') {
            struct reader ahead = reader;
            int64_t numbers;
            enum rk_status status = read_ranges(&ahead, -1, part, sizeof part, &numbers);
            if (status != RK_OK)
                return status;
            if (numbers < 1 || count < numbers)
                return fail_at(&reader, "the numbers do not add up");
            count /= numbers;
            status = read_ranges(&reader, index / count, part, sizeof part, &numbers);
            if (status != RK_OK)
                return status;
            index %= count;
        } else {
            reader.at++;
        }
        size_t length = strlen(part);
        if (used + length >= size)
            return fail_at(&reader, "a host name is too long");
        memcpy(host + used, part, length + 1);
        used += length;
    }
    return RK_OK;
}

enum rk_status rk_slurm_host(const char *list, int64_t index, char *host, size_t size, int64_t *count,
                             struct rk_error *error) {
    struct reader reader = {.list = list, .at = list, .error = error};
    char found[256];
    bool have = false;
    int64_t total = 0;
    for (;; reader.at++) {
        int64_t hosts;
        const char *end = reader.at;
        enum rk_status status = count_element(reader, &hosts, &end);
        if (status == RK_OK && index >= total && index - total < hosts) {
            status = write_element(reader, index - total, hosts, found, sizeof found < size ? sizeof found : size);
            have = true;
        }
        if (status != RK_OK)
            return status;
        total += hosts;
        reader.at = end;
        if (total > RK_SLURM_HOSTS_MAX)
            return fail_at(&reader, "there are too many hosts");
        if (*reader.at == '\0')
            break;
    }
    if (!have)
        return rk_fail(error, RK_USAGE, "Slurm's host list \"%.120s\" has %lld hosts, none with number %lld", list,
                       (long long)total, (long long)index);
    memcpy(host, found, strlen(found) + 1);
    *count = total;
    return RK_OK;
}
