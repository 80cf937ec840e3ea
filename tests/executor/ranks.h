/* Ranks as forked processes, for tests of what passes between them. */
#ifndef RK_TESTS_EXECUTOR_RANKS_H
#define RK_TESTS_EXECUTOR_RANKS_H

#include "executor/launch.h"
#include "executor/transport.h"

#include <sys/types.h>

enum { RANKS_MAX = 16 };

/* In a rank: prints what failed and where, and ends the rank with 99. */
#define RANK_CHECK(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            rank_check_failed(__FILE__, __LINE__, #condition, "");                                                     \
    } while (0)
#define RANK_CHECK_OK(call, error)                                                                                     \
    do {                                                                                                               \
        if ((call) != RK_OK)                                                                                           \
            rank_check_failed(__FILE__, __LINE__, #call, (error).text);                                                \
    } while (0)
_Noreturn void rank_check_failed(const char *file, int line, const char *what, const char *text);

/* What a rank runs; its result is the process's exit code. */
typedef int rank_function(const struct rk_place *place, void *context);

/* Forks `world` ranks that find each other on the loopback and returns their process numbers. */
void ranks_start(int world, rank_function *function, void *context, pid_t processes[RANKS_MAX]);
/* Waits for all; the results of waitpid. */
void ranks_wait(int world, const pid_t processes[RANKS_MAX], int results[RANKS_MAX]);
/* Both, and all must end with 0. */
void ranks_run(int world, rank_function *function, void *context);

/* In a rank: meets the others. */
struct rk_job *rank_meet(const struct rk_place *place, double deadline_seconds);

/* In a rank: a program that holds only what a transport reads of it: the candidate's layout and the ops' shapes. */
void rank_program(struct rk_program *program, struct rk_op *ops, const struct rk_op_shape *shapes, size_t count,
                  int pipeline, int expert_parallel, int data_parallel);

/* A listening socket on a free loopback port. */
int loopback_listener(int32_t *port);

#endif
