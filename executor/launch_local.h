/* What the parts of `run --nproc` share: the environment of a rank and the output of the ranks. */
#ifndef RK_EXECUTOR_LAUNCH_LOCAL_H
#define RK_EXECUTOR_LAUNCH_LOCAL_H

#include "base/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Takes the variables of every launcher out of this process's environment, so that ranks started by it do not believe
 * that they are ranks of whatever has started it. */
void rk_launch_forget_launchers(void);

enum { RK_OUTPUT_LINE = 4096, RK_OUTPUT_HELD = 64 };

/* The output of one rank on its way to the log, line by line. */
struct rk_output {
    int descriptor; /* what the rank writes to, or -1 */
    size_t length;
    char line[RK_OUTPUT_LINE];
};

/* Errors are held back until the end of the job: several ranks often say the same, and when all fail alike rank 0 has
 * already said it. */
struct rk_held_errors {
    char *line[RK_OUTPUT_HELD]; /* with the rank before it; owned */
    int count;
};

/* Passes on what is there to read; closes the descriptor at the end of the output. */
void rk_output_read(struct rk_output *output, int64_t rank, const struct rk_log *log, struct rk_held_errors *held);
/* Passes on a last line without a line break and closes. */
void rk_output_close(struct rk_output *output, int64_t rank, const struct rk_log *log, struct rk_held_errors *held);
/* Writes the held errors when `print` is set, and frees them. */
void rk_held_errors_release(struct rk_held_errors *held, bool print, const struct rk_log *log);

#endif
