#include "executor/transport_text.h"

#include <stdio.h>

char *rk_transport_rank_text(const struct rk_job *job, int64_t rank, char *buffer, size_t size) {
    const struct rk_peer *peer = &job->peers[rank];
    snprintf(buffer, size, "rank %lld (host %s, process %lld)", (long long)rank, peer->host, (long long)peer->process);
    return buffer;
}

char *rk_transport_place_text(const struct rk_op_shape *shape, const struct rk_transport_position *position,
                              char *buffer, size_t size) {
    if (shape == NULL) {
        snprintf(buffer, size, "the barrier of all ranks");
        return buffer;
    }
    size_t used =
        (size_t)snprintf(buffer, size, "%s over the %s group", rk_op_name(shape->kind), rk_group_name(shape->group));
    if (position == NULL || used >= size)
        return buffer;
    if (position->segment != NULL && used < size)
        used += (size_t)snprintf(buffer + used, size - used, ", segment \"%s\"", position->segment);
    if (position->layer >= 0 && used < size)
        used += (size_t)snprintf(buffer + used, size - used, ", layer %d", position->layer);
    if (position->micro_batch >= 0 && used < size)
        used += (size_t)snprintf(buffer + used, size - used, ", micro-batch %d", position->micro_batch);
    if (used < size)
        snprintf(buffer + used, size - used, ", step %lld", (long long)position->step);
    return buffer;
}
