/* Time: monotonic for durations, UTC for records. */
#ifndef RK_BASE_CLOCK_H
#define RK_BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

/* Seconds since an arbitrary start; never goes back, not changed by setting the clock. */
double rk_clock_seconds(void);
int64_t rk_clock_nanoseconds(void);

/* Seconds since 1970-01-01 UTC. */
double rk_clock_wall(void);

/* "2026-11-29T19:24:05Z" now, and of a given time. Returns buffer (at least 21 bytes). */
char *rk_clock_utc(char *buffer, size_t size);
char *rk_clock_utc_at(int64_t seconds, char *buffer, size_t size);

#endif
