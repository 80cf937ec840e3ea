/* Ranks as forked processes, for tests of what passes between them. They are CPU ranks with shared memory; with
 * RK_TEST_BACKEND=cuda in the environment they are GPUs with NCCL, and the same tests test that transport. */
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

/* The back end and the transport under test. */
bool ranks_on_gpus(void);
const struct rk_backend *ranks_backend(void);
const struct rk_transport_table *ranks_transport(void);
/* Whether that many ranks can run here: on GPUs each needs one of its own. Says so when they cannot. */
bool ranks_can_run(int world);

/* In a rank: opens the transport under test, on the rank's own GPU where there are such. */
struct rk_transport *rank_open(const struct rk_job *job, const struct rk_program *program, double deadline_seconds);
/* In a rank: runs an op whose operands lie in host memory. On a GPU they are copied there and what was written comes back;
 * operands that overlap on the host overlap there. Sends are not waited for. */
enum rk_status rank_run(struct rk_transport *transport, const struct rk_op_call *call, enum rk_stream_kind stream,
                        const struct rk_transport_position *position, struct rk_error *error);

/* A listening socket on a free loopback port. */
int loopback_listener(int32_t *port);

#endif
