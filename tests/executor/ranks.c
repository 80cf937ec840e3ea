#include "ranks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

_Noreturn void rank_check_failed(const char *file, int line, const char *what, const char *text) {
    fprintf(stderr, "process %d: %s:%d: %s failed: %s\n", (int)getpid(), file, line, what, text);
    _exit(99);
}

int loopback_listener(int32_t *port) {
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    assert_true(descriptor > 0);
    assert_int_equal(bind(descriptor, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(descriptor, 64), 0);
    assert_int_equal(getsockname(descriptor, (struct sockaddr *)&address, &length), 0);
    *port = ntohs(address.sin_port);
    return descriptor;
}

void ranks_start(int world, rank_function *function, void *context, pid_t processes[RANKS_MAX]) {
    assert_true(world <= RANKS_MAX);
    struct rk_place place = {.launcher = RK_LAUNCHER_FLAGS, .world = world, .master = "127.0.0.1", .token = "a test"};
    place.listener = loopback_listener(&place.port);
    fflush(NULL);
    pid_t parent = getpid();
    for (int rank = 0; rank < world; rank++) {
        processes[rank] = fork();
        assert_true(processes[rank] >= 0);
        if (processes[rank] != 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(98);
        place.rank = rank;
        if (rank != 0) {
            close(place.listener);
            place.listener = 0;
        }
        exit(function(&place, context));
    }
    close(place.listener);
}

void ranks_wait(int world, const pid_t processes[RANKS_MAX], int results[RANKS_MAX]) {
    for (int rank = 0; rank < world; rank++)
        assert_int_equal(waitpid(processes[rank], &results[rank], 0), processes[rank]);
}

void ranks_run(int world, rank_function *function, void *context) {
    if (!ranks_can_run(world))
        return;
    pid_t processes[RANKS_MAX];
    int results[RANKS_MAX];
    ranks_start(world, function, context, processes);
    ranks_wait(world, processes, results);
    for (int rank = 0; rank < world; rank++)
        assert_int_equal(results[rank], 0);
}

struct rk_job *rank_meet(const struct rk_place *place, double deadline_seconds) {
    static const uint8_t agreement[32] = {1, 2, 3};
    struct rk_peer self = {0};
    struct rk_job *job = NULL;
    struct rk_error error = {0};
    RANK_CHECK_OK(rk_launch_meet(place, NULL, agreement, &self, deadline_seconds, &job, &error), error);
    return job;
}

void rank_program(struct rk_program *program, struct rk_op *ops, const struct rk_op_shape *shapes, size_t count,
                  int pipeline, int expert_parallel, int data_parallel) {
    memset(program, 0, sizeof *program);
    memset(ops, 0, count * sizeof *ops);
    for (size_t i = 0; i < count; i++)
        ops[i].shape = shapes[i];
    program->candidate.pipeline = pipeline;
    program->candidate.virtual_stages = 1;
    program->candidate.expert_parallel = expert_parallel;
    program->candidate.data_parallel = data_parallel;
    program->slots[0] = pipeline;
    program->ops = ops;
    program->op_count = count;
}
