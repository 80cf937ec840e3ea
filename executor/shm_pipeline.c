/* Messages between stages: a ring of bytes for each sender and direction. Sending returns as soon as the message is in
 * the ring. The ring holds as many messages as a sender of any schedule can be ahead, so neighbours that send to each
 * other at the same time do not wait for one another. Longer messages than the ring pass through it in pieces. */
#include "executor/transport_shm.h"

#include <string.h>

struct message {
    uint64_t bytes;
    uint64_t reserved;
};

/* A link as its sender and its receiver see it. */
struct link {
    int64_t sender, receiver;
    enum rk_shm_link name;
    struct rk_shm_word *sent, *taken;
    char *ring;
};

static struct link link_of(const struct rk_transport *transport, const struct rk_op_call *call, bool sending) {
    int64_t peer = transport->group[call->shape->group].ranks[0];
    bool to_next = (call->shape->group == RK_GROUP_PIPELINE_NEXT) == sending;
    struct link link = {.sender = sending ? transport->rank : peer,
                        .receiver = sending ? peer : transport->rank,
                        .name = to_next ? RK_SHM_LINK_NEXT : RK_SHM_LINK_PREVIOUS};
    struct rk_shm_rank *block = rk_shm_rank(transport, link.sender);
    link.sent = &block->sent[link.name];
    link.taken = &block->taken[link.name];
    link.ring = rk_shm_ring(transport, link.sender, link.name);
    return link;
}

static int64_t the_peer(const struct rk_transport *transport, int64_t context) {
    (void)transport;
    return context;
}

static int64_t least(int64_t left, int64_t right) {
    return left < right ? left : right;
}

/* Long messages move in quarters of the ring, so that both sides work at the same time without waking for every byte.
 */
static int64_t piece_bytes(const struct rk_transport *transport, int64_t left) {
    return least(left, transport->ring_bytes / 4);
}

static enum rk_status put(struct rk_transport *transport, const struct link *link, const void *data, int64_t bytes,
                          bool wake, struct rk_error *error) {
    uint64_t sent = atomic_load(&link->sent->value);
    const char *from = data;
    for (int64_t left = bytes; left > 0;) {
        int64_t piece = piece_bytes(transport, left);
        uint64_t room_from = sent + (uint64_t)piece;
        if (room_from > (uint64_t)transport->ring_bytes) {
            enum rk_status status = rk_shm_wait(transport, link->taken, room_from - (uint64_t)transport->ring_bytes,
                                                the_peer, link->receiver, error);
            if (status != RK_OK)
                return status;
        }
        int64_t at = (int64_t)(sent % (uint64_t)transport->ring_bytes);
        int64_t first = least(piece, transport->ring_bytes - at);
        memcpy(link->ring + at, from, (size_t)first);
        memcpy(link->ring, from + first, (size_t)(piece - first));
        sent += (uint64_t)piece;
        from += piece;
        left -= piece;
        rk_shm_word_set(link->sent, sent, wake);
    }
    return RK_OK;
}

static enum rk_status take(struct rk_transport *transport, const struct link *link, void *data, int64_t bytes,
                           bool wake, struct rk_error *error) {
    uint64_t taken = atomic_load(&link->taken->value);
    char *to = data;
    for (int64_t left = bytes; left > 0;) {
        int64_t piece = piece_bytes(transport, left);
        enum rk_status status =
            rk_shm_wait(transport, link->sent, taken + (uint64_t)piece, the_peer, link->sender, error);
        if (status != RK_OK)
            return status;
        int64_t at = (int64_t)(taken % (uint64_t)transport->ring_bytes);
        int64_t first = least(piece, transport->ring_bytes - at);
        memcpy(to, link->ring + at, (size_t)first);
        memcpy(to + first, link->ring, (size_t)(piece - first));
        taken += (uint64_t)piece;
        to += piece;
        left -= piece;
        rk_shm_word_set(link->taken, taken, wake);
    }
    return RK_OK;
}

enum rk_status rk_shm_send(struct rk_transport *transport, const struct rk_op_call *call, struct rk_error *error) {
    struct link link = link_of(transport, call, true);
    struct message message = {.bytes = (uint64_t)call->shape->dim[0]};
    /* The message alone would wake the receiver for sixteen bytes. */
    enum rk_status status = put(transport, &link, &message, sizeof message, message.bytes == 0, error);
    if (status == RK_OK)
        status = put(transport, &link, call->operand[0], (int64_t)message.bytes, true, error);
    if (status == RK_OK && link.receiver != link.sender)
        transport->remote_bytes[RK_OP_FAMILY_PIPELINE] += (int64_t)message.bytes;
    return status;
}

enum rk_status rk_shm_receive(struct rk_transport *transport, const struct rk_op_call *call, struct rk_error *error) {
    struct link link = link_of(transport, call, false);
    struct message message;
    enum rk_status status = take(transport, &link, &message, sizeof message, true, error);
    if (status != RK_OK)
        return status;
    if (message.bytes != (uint64_t)call->shape->dim[0]) {
        char name[256], place[256];
        rk_shm_fail_all(transport, RK_SHM_GAVE_UP, transport->rank);
        return rk_fail(error, RK_ERROR, "the stages' programs part: %s sent %llu bytes where %s expects %lld",
                       rk_shm_rank_name(transport, link.sender, name, sizeof name), (unsigned long long)message.bytes,
                       rk_shm_place_name(transport, place, sizeof place), (long long)call->shape->dim[0]);
    }
    return take(transport, &link, call->operand[0], (int64_t)message.bytes, true, error);
}
