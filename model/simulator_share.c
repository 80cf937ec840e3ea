/* The player for ranks that share devices: CPU ranks on the cores of one host.
 *
 * A rank is one lane. Time runs from completion to completion; between two of them the set of busy ranks does not
 * change, so every running op advances at a known speed: its price with that many ranks busy, interpolated between the
 * two prices that the cost source gave, and in proportion to busy/devices beyond the devices. */
#include "model/simulator_internal.h"

#include <stdio.h>
#include <stdlib.h>

enum activity { FREE, RUNNING, WAITING, ENDED };

struct rank_state {
    enum activity activity;
    size_t visit;
    size_t next_op; /* inside the visit's segment */
    const struct rk_played_op *op;
    size_t op_index, op_visit;
    double remaining; /* share of the op still to do */
    double ready, start;
};

struct channel_state {
    int64_t complete; /* meetings that are over; buffered: sends that are complete */
    int64_t received; /* receives begun */
    int32_t arrived;  /* at the next meeting */
};

struct share {
    struct rk_played *played;
    struct rank_state *ranks; /* one per stage: its D replicas move alike */
    struct channel_state *channels;
    double now;
    struct rk_error *error;
};

static bool next_op(struct share *share, int32_t index) {
    struct rank_state *rank = &share->ranks[index];
    const struct rk_played_stage *stage = &share->played->stages[index];
    const struct rk_program *program = stage->program;
    for (; rank->visit < program->visit_count; rank->visit++, rank->next_op = 0) {
        const struct rk_segment *segment = &program->segments[program->schedule[rank->visit].segment];
        if (rank->next_op >= segment->op_count)
            continue;
        rank->op_visit = rank->visit;
        rank->op_index = segment->first_op + rank->next_op++;
        rank->op = &stage->ops[rank->op_index];
        rank->ready = share->now;
        rank->remaining = 1;
        return true;
    }
    rank->activity = ENDED;
    share->played->stages[index].end = share->now;
    return false;
}

static void start_running(struct share *share, int32_t index) {
    share->ranks[index].activity = RUNNING;
    share->ranks[index].start = share->now;
}

/* All ranks that stand at an op of the channel start. */
static void start_channel(struct share *share, int32_t channel) {
    for (int32_t i = 0; i < share->played->stage_count; i++)
        if (share->ranks[i].activity == WAITING && share->ranks[i].op->channel == channel)
            start_running(share, i);
}

/* Whether a receive of a buffered channel may take the next message. */
static bool take_message(struct channel_state *channel) {
    if (channel->received >= channel->complete)
        return false;
    channel->received++;
    return true;
}

static void begin_op(struct share *share, int32_t index) {
    struct rank_state *rank = &share->ranks[index];
    const struct rk_played_op *op = rank->op;
    rank->activity = WAITING;
    if (op->channel < 0 || (share->played->buffered && op->meeting == RK_MEETING_SEND)) {
        start_running(share, index);
        return;
    }
    struct channel_state *channel = &share->channels[op->channel];
    if (share->played->buffered && op->meeting == RK_MEETING_RECEIVE) {
        if (take_message(channel))
            start_running(share, index);
        return;
    }
    if (++channel->arrived < rk_played_channel_size(share->played, op->channel))
        return;
    channel->arrived = 0;
    channel->complete++;
    start_channel(share, op->channel);
}

static enum rk_status end_op(struct share *share, int32_t index) {
    struct rank_state *rank = &share->ranks[index];
    struct rk_played_stage *stage = &share->played->stages[index];
    const struct rk_played_op *op = &stage->ops[rank->op_index];
    stage->busy[rank->op_index] += share->now - rank->start;
    stage->account[RK_STAGE_ACCOUNT_bubble] += rank->start - rank->ready;
    stage->account[op->account] += share->now - rank->start;
    rank->activity = FREE;
    if (share->played->buffered && op->meeting == RK_MEETING_SEND) {
        struct channel_state *channel = &share->channels[op->channel];
        channel->complete++;
        for (int32_t i = 0; i < share->played->stage_count; i++) {
            struct rank_state *peer = &share->ranks[i];
            if (peer->activity == WAITING && peer->op->channel == op->channel && take_message(channel))
                start_running(share, i);
        }
    }
    if (!share->played->want_timeline)
        return RK_OK;
    return rk_played_record(share->played, index, rank->op_index, rank->op_visit, rank->start, share->now,
                            share->error);
}

static double price_at(const struct share *share, const struct rk_played_op *op, double busy) {
    double full = op->busy_full, alone = op->busy_alone;
    if (busy <= alone || full <= alone) {
        double devices = share->played->machine->devices_per_host;
        double fair = alone > devices ? alone : devices;
        return busy > fair ? op->alone * busy / fair : op->alone;
    }
    if (busy < full)
        return op->alone + (op->seconds - op->alone) * (busy - alone) / (full - alone);
    double devices = share->played->machine->devices_per_host;
    double fair = full > devices ? full : devices;
    return busy > fair ? op->seconds * busy / fair : op->seconds;
}

/* Runs to the next completion. False when nobody runs. */
static bool advance(struct share *share, int32_t *completed) {
    struct rk_played *played = share->played;
    double busy = 0;
    for (int32_t i = 0; i < played->stage_count; i++)
        busy += share->ranks[i].activity == RUNNING ? played->ranks_per_stage : 0;
    if (busy <= 0)
        return false;
    double shortest = 0;
    *completed = -1;
    for (int32_t i = 0; i < played->stage_count; i++) {
        if (share->ranks[i].activity != RUNNING)
            continue;
        double left = share->ranks[i].remaining * price_at(share, share->ranks[i].op, busy);
        if (*completed < 0 || left < shortest) {
            shortest = left;
            *completed = i;
        }
    }
    share->now += shortest;
    for (int32_t i = 0; shortest > 0 && i < played->stage_count; i++) {
        struct rank_state *rank = &share->ranks[i];
        if (rank->activity != RUNNING)
            continue;
        rank->remaining -= shortest / price_at(share, rank->op, busy);
        if (rank->remaining < 0)
            rank->remaining = 0;
    }
    share->ranks[*completed].remaining = 0;
    return true;
}

static enum rk_status deadlock(const struct share *share) {
    char text[900] = "";
    size_t used = 0;
    for (int32_t i = 0; i < share->played->stage_count; i++) {
        const struct rank_state *rank = &share->ranks[i];
        if (rank->activity != WAITING)
            continue;
        char here[256], peer[64];
        rk_played_describe(share->played, i, rank->op_visit, rank->op_index, here, sizeof here);
        rk_played_describe_peers(share->played, i, rank->op, peer, sizeof peer);
        int wrote = snprintf(text + used, sizeof text - used, "%s%s waits for %s", used > 0 ? "; " : "", here, peer);
        if (wrote < 0 || (size_t)wrote >= sizeof text - used)
            break;
        used += (size_t)wrote;
    }
    return rk_fail(share->error, RK_ERROR, "step program would wait for ever: %s", text);
}

static enum rk_status run(struct share *share) {
    int32_t stages = share->played->stage_count;
    for (int32_t i = 0; i < stages; i++)
        if (next_op(share, i))
            begin_op(share, i);
    int32_t completed;
    while (advance(share, &completed)) {
        enum rk_status status = end_op(share, completed);
        if (status != RK_OK)
            return status;
        if (next_op(share, completed))
            begin_op(share, completed);
    }
    for (int32_t i = 0; i < stages; i++)
        if (share->ranks[i].activity != ENDED)
            return deadlock(share);
    return RK_OK;
}

enum rk_status rk_simulator_share(struct rk_played *played, struct rk_error *error) {
    struct share share = {.played = played, .error = error};
    share.ranks = calloc((size_t)played->stage_count, sizeof *share.ranks);
    share.channels = calloc((size_t)played->channel_count, sizeof *share.channels);
    enum rk_status status = share.ranks != NULL && share.channels != NULL
                                ? run(&share)
                                : rk_fail(error, RK_ERROR, "out of memory while simulating");
    free(share.ranks);
    free(share.channels);
    return status;
}
