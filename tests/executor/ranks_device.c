/* The back end under test, and ops on host memory for it. */
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

bool ranks_on_gpus(void) {
    const char *backend = getenv("RK_TEST_BACKEND");
    return backend != NULL && strcmp(backend, "cuda") == 0;
}

const struct rk_backend *ranks_backend(void) {
    return ranks_on_gpus() ? rk_backend_cuda() : rk_backend_cpu();
}

const struct rk_transport_table *ranks_transport(void) {
    return ranks_on_gpus() ? rk_transport_nccl() : rk_transport_shm();
}

/* Counted in a process of its own: one that has touched a GPU cannot fork ranks that do. */
static int count_gpus(void) {
    pid_t child = fork();
    int result = 0;
    if (child == 0) {
        int count = 0;
        if (rk_backend_cuda() != NULL)
            rk_backend_cuda()->device_count(&count, NULL);
        _exit(count);
    }
    return child > 0 && waitpid(child, &result, 0) == child && WIFEXITED(result) ? WEXITSTATUS(result) : 0;
}

bool ranks_can_run(int world) {
    static int gpus = -1;
    if (!ranks_on_gpus())
        return true;
    if (gpus < 0)
        gpus = count_gpus();
    if (world > gpus)
        printf("skipped: %d ranks on %d GPUs\n", world, gpus);
    return world <= gpus;
}

/* A link and direction has a stream of its own, so that a rank can receive behind a send that nobody has taken yet. */
enum { STREAMS = 5, PIECES_MAX = RK_OP_OPERANDS };

static struct rk_device *device;
static struct rk_stream *streams[STREAMS];

struct rk_transport *rank_open(const struct rk_job *job, const struct rk_program *program, double deadline_seconds) {
    const struct rk_backend *backend = ranks_backend();
    struct rk_transport *transport = NULL;
    struct rk_error error = {0};
    if (ranks_on_gpus() && device == NULL) {
        RANK_CHECK_OK(backend->device_open((int)job->place.rank, NULL, &device, &error), error);
        for (int i = 0; i < STREAMS; i++)
            RANK_CHECK_OK(backend->stream_create(device, false, &streams[i], &error), error);
    }
    RANK_CHECK_OK(ranks_transport()->open(job, backend, device, program, deadline_seconds, &transport, &error), error);
    return transport;
}

/* A piece of host memory that operands lie in, and its copy on the device. */
struct piece {
    char *begin, *end;
    void *copy;
};

static int find_pieces(const struct rk_op_call *call, struct piece pieces[PIECES_MAX]) {
    int count = 0;
    for (int i = 0; i < rk_op_operand_count(call->shape->kind); i++) {
        int64_t bytes = rk_op_operand_bytes(call->shape, i);
        if (call->operand[i] == NULL || bytes == 0)
            continue;
        struct piece piece = {call->operand[i], (char *)call->operand[i] + bytes, NULL};
        for (int other = 0; other < count;) {
            if (pieces[other].begin < piece.end && piece.begin < pieces[other].end) {
                piece.begin = pieces[other].begin < piece.begin ? pieces[other].begin : piece.begin;
                piece.end = pieces[other].end > piece.end ? pieces[other].end : piece.end;
                pieces[other] = pieces[--count];
                other = 0;
            } else {
                other++;
            }
        }
        pieces[count++] = piece;
    }
    return count;
}

static int stream_of(const struct rk_op_shape *shape) {
    int next = shape->group == RK_GROUP_PIPELINE_NEXT;
    return shape->kind == RK_OP_SEND ? next : shape->kind == RK_OP_RECEIVE ? 2 + next : 4;
}

static enum rk_status run_on_gpu(struct rk_transport *transport, const struct rk_op_call *call,
                                 enum rk_stream_kind kind, const struct rk_transport_position *position,
                                 struct rk_error *error) {
    const struct rk_backend *backend = ranks_backend();
    struct rk_stream *stream = streams[stream_of(call->shape)];
    struct rk_op_call moved = *call;
    struct piece pieces[PIECES_MAX];
    int count = find_pieces(call, pieces);
    for (int p = 0; p < count; p++) {
        RANK_CHECK_OK(backend->memory_allocate(device, pieces[p].end - pieces[p].begin, &pieces[p].copy, error),
                      *error);
        RANK_CHECK_OK(
            backend->copy(stream, pieces[p].copy, pieces[p].begin, pieces[p].end - pieces[p].begin, RK_COPY_H2D, error),
            *error);
    }
    for (int i = 0; i < RK_OP_OPERANDS; i++)
        for (int p = 0; p < count; p++) {
            char *operand = call->operand[i];
            if (operand != NULL && operand >= pieces[p].begin && operand < pieces[p].end)
                moved.operand[i] = (char *)pieces[p].copy + (operand - pieces[p].begin);
        }
    enum rk_status status = ranks_transport()->run(transport, stream, &moved, kind, position, error);
    if (status != RK_OK || call->shape->kind == RK_OP_SEND)
        return status;
    for (int p = 0; p < count && status == RK_OK; p++)
        status =
            backend->copy(stream, pieces[p].begin, pieces[p].copy, pieces[p].end - pieces[p].begin, RK_COPY_D2H, error);
    if (status == RK_OK)
        status = backend->stream_synchronize(stream, 60, error);
    for (int p = 0; p < count; p++)
        backend->memory_free(device, pieces[p].copy);
    return status;
}

enum rk_status rank_run(struct rk_transport *transport, const struct rk_op_call *call, enum rk_stream_kind stream,
                        const struct rk_transport_position *position, struct rk_error *error) {
    if (ranks_on_gpus())
        return run_on_gpu(transport, call, stream, position, error);
    return ranks_transport()->run(transport, NULL, call, stream, position, error);
}
