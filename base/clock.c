#include "base/clock.h"

#include <stdio.h>
#include <time.h>

int64_t rk_clock_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

double rk_clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double rk_clock_wall(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

char *rk_clock_utc_at(int64_t seconds, char *buffer, size_t size) {
    time_t time = (time_t)seconds;
    struct tm parts;
    if (size == 0)
        return buffer;
    buffer[0] = '\0';
    if (gmtime_r(&time, &parts) != NULL && strftime(buffer, size, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
        buffer[0] = '\0';
    return buffer;
}

char *rk_clock_utc(char *buffer, size_t size) {
    return rk_clock_utc_at((int64_t)time(NULL), buffer, size);
}
