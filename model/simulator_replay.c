/* The player for machines whose devices are not shared.
 *
 * Each stage reads its program in order, as a host submits it. An op whose predecessors have known ends is resolved on
 * the spot; that is the fast path, with no memory taken. An op that must wait for another stage stands as a node in its
 * lane's queue, and later ops of other lanes go on. A stage stops reading when the next op's lane is held up, and is
 * taken up again when a peer arrives. When no stage can go on that way, reading ahead past held-up lanes is allowed,
 * further each time; when everything is read and nothing moves, the program would wait for ever. */
#include "model/simulator_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_NODE = -1 };

/* What those who come later must know of an op: when it ended, and what the time before that went to. The latest
 * meeting with another stage that led to it, directly or through the ops before it, had the lane wait for the peer over
 * [wait_from, wait_until) and then move data until moved_until: that tells waiting for a stage from whatever stood
 * between. */
struct past {
    double ready; /* its lane, its waits and the host let it start */
    double start; /* its peers had arrived too */
    double finish;
    double wait_from, wait_until, moved_until;
    uint8_t account, moved_account;
};

struct event_state {
    struct past past;
    int32_t node; /* the unresolved op that records it, or NO_NODE */
};

struct node {
    struct past latest; /* of the waits that are resolved: the one that ended last */
    struct past past;   /* once done */
    double submitted;
    size_t visit;
    uint32_t op;
    uint32_t record[RK_OP_RECORDS]; /* event instances that it records */
    int32_t record_count;
    int64_t serial; /* number of its meeting in its channel */
    int32_t wait[RK_OP_WAITS];
    int32_t wait_count;
    int32_t next; /* in its lane, in its meeting's list is next_met, in the free list */
    int32_t next_met;
    int32_t references;
    int32_t stage;
    bool met; /* stands in its meeting */
    bool done;
};

struct meeting {
    double start; /* latest arrival; buffered: when the send's copy is complete */
    double seconds;
    int32_t arrived;
    int32_t nodes; /* list of those who wait */
};

/* Meetings of a channel by number: those from first on are kept, in a ring of capacity (a power of two). */
struct channel {
    struct meeting *ring;
    int64_t first, end;
    int64_t capacity;
};

struct lane {
    int32_t head, tail;
    struct past last; /* the op that ended last in it */
};

struct stage_state {
    struct event_state *events;
    struct lane lanes[RK_STREAM_COUNT];
    int64_t *serials; /* ops met so far, by channel and side: 2 · channel + (receive) */
    size_t visit;
    uint32_t next_op; /* inside the visit's segment */
    int64_t submitted;
    int64_t resolved;
    int64_t queued; /* nodes not yet done */
    uint32_t held;  /* bit per lane with a queue */
    bool listed;
};

struct replay {
    struct rk_played *played;
    struct stage_state *stages;
    struct channel *channels;
    struct node *nodes;
    int32_t node_count, node_capacity, free_nodes;
    int32_t *work; /* ring of stages to take up */
    int32_t work_first, work_count;
    int64_t ahead; /* how many nodes of a stage may be queued behind held-up lanes */
    struct rk_error *error;
};

static enum rk_status no_memory(const struct replay *replay) {
    return rk_fail(replay->error, RK_ERROR, "out of memory while simulating");
}

static void list_stage(struct replay *replay, int32_t stage) {
    if (replay->stages[stage].listed)
        return;
    replay->stages[stage].listed = true;
    int32_t at = (replay->work_first + replay->work_count) % replay->played->stage_count;
    replay->work[at] = stage;
    replay->work_count++;
}

static enum rk_status take_node(struct replay *replay, int32_t *taken) {
    if (replay->free_nodes == NO_NODE) {
        int32_t capacity = replay->node_capacity == 0 ? 256 : replay->node_capacity;
        if (capacity > INT32_MAX / 2)
            return no_memory(replay);
        capacity *= 2;
        struct node *grown = realloc(replay->nodes, (size_t)capacity * sizeof *grown);
        if (grown == NULL)
            return no_memory(replay);
        replay->nodes = grown;
        for (int32_t i = capacity - 1; i >= replay->node_capacity; i--) {
            grown[i].next = replay->free_nodes;
            replay->free_nodes = i;
        }
        replay->node_capacity = capacity;
    }
    *taken = replay->free_nodes;
    replay->free_nodes = replay->nodes[*taken].next;
    return RK_OK;
}

static void drop_node(struct replay *replay, int32_t index) {
    struct node *node = &replay->nodes[index];
    if (--node->references > 0)
        return;
    node->next = replay->free_nodes;
    replay->free_nodes = index;
}

static double larger(double left, double right) {
    return left > right ? left : right;
}

static double overlap(double from, double to, double begin, double end) {
    double first = larger(from, begin), last = end < to ? end : to;
    return last > first ? last - first : 0;
}

/* Books the part of a stage's time between from and to, in which its first lane waited for an op that ended at `to`. */
static void book_wait(struct rk_played_stage *stage, double from, double to, const struct past *waited) {
    if (to <= from)
        return;
    double bubble = overlap(from, to, waited->wait_from, waited->wait_until);
    double moved = overlap(from, to, waited->wait_until, waited->moved_until);
    stage->account[RK_STAGE_ACCOUNT_bubble] += bubble;
    stage->account[waited->moved_account] += moved;
    stage->account[waited->account] += (to - from) - bubble - moved;
}

/* The op before, in its lane or by an event, that decided when it became ready passes on its meeting. */
static void inherit(const struct lane *lane, const struct past *latest, struct past *past) {
    const struct past *decided = latest->finish > lane->last.finish ? latest : &lane->last;
    past->wait_from = decided->wait_from;
    past->wait_until = decided->wait_until;
    past->moved_until = decided->moved_until;
    past->moved_account = decided->moved_account;
}

/* An op that waited for its peers is a meeting of its own. */
static void note_meeting(struct past *past) {
    if (past->start <= past->ready)
        return;
    past->wait_from = past->ready;
    past->wait_until = past->start;
    past->moved_until = past->finish;
    past->moved_account = past->account;
}

/* Everything that follows from an op's times: its lane, its event, its books. */
static enum rk_status finish_op(struct replay *replay, int32_t index, const struct rk_played_op *op, uint32_t op_index,
                                size_t visit, double submitted, const struct past *latest, const struct past *past) {
    struct rk_played_stage *stage = &replay->played->stages[index];
    struct stage_state *state = &replay->stages[index];
    struct lane *lane = &state->lanes[op->lane];
    stage->busy[op_index] += past->finish - past->start;
    if (op->lane == 0) {
        double free_at = lane->last.finish;
        double waited = larger(free_at, latest->finish);
        book_wait(stage, free_at, waited, latest);
        if (submitted > waited)
            stage->account[RK_STAGE_ACCOUNT_starved] += submitted - waited;
        stage->account[RK_STAGE_ACCOUNT_bubble] += past->start - past->ready;
        stage->account[op->account] += past->finish - past->start;
    }
    lane->last = *past;
    state->resolved++;
    if (!replay->played->want_timeline)
        return RK_OK;
    return rk_played_record(replay->played, index, op_index, visit, past->start, past->finish, replay->error);
}

static struct meeting *meeting_of(struct replay *replay, int32_t channel_index, int64_t serial) {
    struct channel *channel = &replay->channels[channel_index];
    if (serial - channel->first >= channel->capacity) {
        int64_t capacity = channel->capacity == 0 ? 16 : channel->capacity * 2;
        while (serial - channel->first >= capacity)
            capacity *= 2;
        struct meeting *ring = calloc((size_t)capacity, sizeof *ring);
        if (ring == NULL)
            return NULL;
        for (int64_t i = channel->first; i < channel->end; i++)
            ring[i & (capacity - 1)] = channel->ring[i & (channel->capacity - 1)];
        free(channel->ring);
        channel->ring = ring;
        channel->capacity = capacity;
    }
    for (; channel->end <= serial; channel->end++)
        channel->ring[channel->end & (channel->capacity - 1)] = (struct meeting){.nodes = NO_NODE};
    return &channel->ring[serial & (channel->capacity - 1)];
}

static void end_meetings(struct replay *replay, int32_t index) {
    struct channel *channel = &replay->channels[index];
    int32_t size = rk_played_channel_size(replay->played, index);
    while (channel->first < channel->end && channel->ring[channel->first & (channel->capacity - 1)].arrived == size)
        channel->first++;
}

/* A node's times are known: it leaves its lane (it stands at the head), and its event learns them. */
static enum rk_status finish_node(struct replay *replay, int32_t index, const struct past *past) {
    struct node *node = &replay->nodes[index];
    struct stage_state *state = &replay->stages[node->stage];
    const struct rk_played_op *op = &replay->played->stages[node->stage].ops[node->op];
    struct lane *lane = &state->lanes[op->lane];
    node->past = *past;
    node->done = true;
    enum rk_status status =
        finish_op(replay, node->stage, op, node->op, node->visit, node->submitted, &node->latest, past);
    if (status != RK_OK)
        return status;
    state->queued--;
    lane->head = node->next;
    if (lane->head == NO_NODE) {
        lane->tail = NO_NODE;
        state->held &= ~(1u << op->lane);
    }
    for (int32_t i = 0; i < node->record_count; i++) {
        struct event_state *event = &state->events[node->record[i]];
        if (event->node != index)
            continue;
        *event = (struct event_state){.past = *past, .node = NO_NODE};
        drop_node(replay, index);
    }
    list_stage(replay, node->stage);
    drop_node(replay, index);
    return RK_OK;
}

static enum rk_status release_met(struct replay *replay, struct meeting *meeting, double start, double seconds) {
    int32_t index = meeting->nodes;
    meeting->nodes = NO_NODE;
    while (index != NO_NODE) {
        const struct node *node = &replay->nodes[index];
        int32_t next = node->next_met;
        struct past past = node->past;
        past.start = larger(start, past.ready);
        past.finish = past.start + seconds;
        note_meeting(&past);
        enum rk_status status = finish_node(replay, index, &past);
        if (status != RK_OK)
            return status;
        index = next;
    }
    return RK_OK;
}

/* An op arrives at its meeting, ready at past->ready. When that completes it, *known is set, past is filled and those
 * who waited are released. Otherwise the caller's node must stand in the meeting. */
static enum rk_status arrive(struct replay *replay, const struct rk_played_op *op, int64_t serial, struct past *past,
                             bool *known) {
    struct meeting *meeting = meeting_of(replay, op->channel, serial);
    if (meeting == NULL)
        return no_memory(replay);
    enum rk_status status = RK_OK;
    meeting->arrived++;
    if (replay->played->buffered && op->meeting == RK_MEETING_SEND) {
        past->start = past->ready;
        past->finish = meeting->start = past->ready + op->seconds;
        *known = true;
        int32_t waiting = meeting->nodes;
        if (waiting != NO_NODE) {
            const struct node *node = &replay->nodes[waiting];
            double seconds = replay->played->stages[node->stage].ops[node->op].seconds;
            status = release_met(replay, meeting, past->finish, seconds);
        }
    } else if (meeting->arrived == rk_played_channel_size(replay->played, op->channel)) {
        bool buffered = replay->played->buffered && op->meeting == RK_MEETING_RECEIVE;
        past->start = larger(past->ready, meeting->start);
        double seconds = buffered ? op->seconds : larger(meeting->seconds, op->seconds);
        past->finish = past->start + seconds;
        note_meeting(past);
        *known = true;
        status = release_met(replay, meeting, past->start, seconds);
    } else {
        meeting->start = larger(meeting->start, past->ready);
        meeting->seconds = larger(meeting->seconds, op->seconds);
        *known = false;
        return RK_OK;
    }
    if (status == RK_OK)
        end_meetings(replay, op->channel);
    return status;
}

static void stand_in_meeting(struct replay *replay, int32_t index, const struct past *past) {
    struct node *node = &replay->nodes[index];
    const struct rk_played_op *op = &replay->played->stages[node->stage].ops[node->op];
    struct channel *channel = &replay->channels[op->channel];
    struct meeting *meeting = &channel->ring[node->serial & (channel->capacity - 1)];
    node->past = *past;
    node->met = true;
    node->next_met = meeting->nodes;
    meeting->nodes = index;
}

/* Resolves the heads of a lane's queue as far as it goes. */
static enum rk_status advance_lane(struct replay *replay, int32_t stage, int lane_index, bool *moved) {
    struct stage_state *state = &replay->stages[stage];
    struct lane *lane = &state->lanes[lane_index];
    while (lane->head != NO_NODE) {
        int32_t index = lane->head;
        struct node *node = &replay->nodes[index];
        if (node->met)
            return RK_OK;
        while (node->wait_count > 0) {
            int32_t waited = node->wait[node->wait_count - 1];
            if (!replay->nodes[waited].done)
                return RK_OK;
            if (replay->nodes[waited].past.finish > node->latest.finish)
                node->latest = replay->nodes[waited].past;
            node->wait_count--;
            drop_node(replay, waited);
        }
        const struct rk_played_op *op = &replay->played->stages[stage].ops[node->op];
        struct past past = {.account = op->account};
        past.ready = larger(larger(lane->last.finish, node->latest.finish), node->submitted);
        inherit(lane, &node->latest, &past);
        past.start = past.ready;
        past.finish = past.start + op->seconds;
        bool known = true;
        if (op->channel >= 0) {
            enum rk_status status = arrive(replay, op, node->serial, &past, &known);
            if (status != RK_OK)
                return status;
        }
        *moved = true;
        if (!known) {
            stand_in_meeting(replay, index, &past);
            return RK_OK;
        }
        enum rk_status status = finish_node(replay, index, &past);
        if (status != RK_OK)
            return status;
    }
    return RK_OK;
}

static uint32_t event_instance(const struct rk_played_stage *stage, const struct rk_event_reference *reference,
                               const struct rk_visit *visit) {
    uint32_t first = stage->event_first[reference->event];
    if (stage->program->events[reference->event].scope == RK_SCOPE_STEP)
        return first;
    return first + (uint32_t)rk_program_event_instance(stage->program, reference, visit);
}

/* The next op of the program, with its waits looked up. */
struct issue {
    const struct rk_played_op *op;
    uint32_t op_index;
    size_t visit;
    struct past latest;
    double submitted;
    int32_t wait[RK_OP_WAITS];
    int32_t wait_count;
    uint32_t record[RK_OP_RECORDS];
};

/* The op's waits and records as event instances. False when an instance does not exist. */
static bool look_up_events(const struct rk_played_stage *stage, const struct stage_state *state,
                           const struct rk_visit *visit, struct issue *issue) {
    issue->latest = (struct past){0};
    issue->wait_count = 0;
    for (int i = 0; i < issue->op->wait_count; i++) {
        uint32_t instance = event_instance(stage, &issue->op->wait[i], visit);
        if (instance >= stage->event_instances)
            return false;
        const struct event_state *event = &state->events[instance];
        if (event->node != NO_NODE)
            issue->wait[issue->wait_count++] = event->node;
        else if (event->past.finish > issue->latest.finish)
            issue->latest = event->past;
    }
    for (int i = 0; i < issue->op->record_count; i++) {
        issue->record[i] = event_instance(stage, &issue->op->record[i], visit);
        if (issue->record[i] >= stage->event_instances)
            return false;
    }
    return true;
}

static enum rk_status queue_op(struct replay *replay, int32_t stage, const struct issue *issue, int64_t serial,
                               int32_t *queued) {
    int32_t index = NO_NODE;
    enum rk_status status = take_node(replay, &index);
    if (status != RK_OK)
        return status;
    struct stage_state *state = &replay->stages[stage];
    struct node *node = &replay->nodes[index];
    *node = (struct node){.latest = issue->latest,
                          .submitted = issue->submitted,
                          .visit = issue->visit,
                          .op = issue->op_index,
                          .serial = serial,
                          .wait_count = issue->wait_count,
                          .next = NO_NODE,
                          .next_met = NO_NODE,
                          .references = 1,
                          .stage = stage};
    for (int32_t i = 0; i < issue->wait_count; i++) {
        node->wait[i] = issue->wait[i];
        replay->nodes[issue->wait[i]].references++;
    }
    struct lane *lane = &state->lanes[issue->op->lane];
    if (lane->tail == NO_NODE)
        lane->head = index;
    else
        replay->nodes[lane->tail].next = index;
    lane->tail = index;
    state->held |= 1u << issue->op->lane;
    state->queued++;
    node->record_count = issue->op->record_count;
    for (int32_t i = 0; i < node->record_count; i++) {
        struct event_state *event = &state->events[issue->record[i]];
        node->record[i] = issue->record[i];
        node->references++;
        if (event->node != NO_NODE)
            drop_node(replay, event->node);
        event->node = index;
    }
    *queued = index;
    return RK_OK;
}

static void set_events(struct replay *replay, struct stage_state *state, const struct issue *issue,
                       const struct past *past) {
    for (int i = 0; i < issue->op->record_count; i++) {
        struct event_state *event = &state->events[issue->record[i]];
        if (event->node != NO_NODE)
            drop_node(replay, event->node);
        *event = (struct event_state){.past = *past, .node = NO_NODE};
    }
}

static enum rk_status issue_op(struct replay *replay, int32_t stage, const struct issue *issue) {
    struct stage_state *state = &replay->stages[stage];
    const struct rk_played_op *op = issue->op;
    int64_t serial = op->channel < 0 ? 0 : state->serials[2 * op->channel + (op->meeting == RK_MEETING_RECEIVE)]++;
    int32_t index;
    if (issue->wait_count > 0 || (state->held & (1u << op->lane)) != 0)
        return queue_op(replay, stage, issue, serial, &index);
    struct past past = {.account = op->account};
    past.ready = larger(larger(state->lanes[op->lane].last.finish, issue->latest.finish), issue->submitted);
    inherit(&state->lanes[op->lane], &issue->latest, &past);
    past.start = past.ready;
    past.finish = past.start + op->seconds;
    if (op->channel >= 0) {
        bool known = false;
        enum rk_status status = arrive(replay, op, serial, &past, &known);
        if (status != RK_OK)
            return status;
        if (!known) {
            if ((status = queue_op(replay, stage, issue, serial, &index)) == RK_OK)
                stand_in_meeting(replay, index, &past);
            return status;
        }
    }
    set_events(replay, state, issue, &past);
    return finish_op(replay, stage, op, issue->op_index, issue->visit, issue->submitted, &issue->latest, &past);
}

/* Reads a stage's program until the next op's lane is held up (and reading ahead is used up) or the program ends. */
static enum rk_status read_program(struct replay *replay, int32_t stage_index, bool *moved) {
    struct rk_played_stage *stage = &replay->played->stages[stage_index];
    struct stage_state *state = &replay->stages[stage_index];
    const struct rk_program *program = stage->program;
    while (state->visit < program->visit_count) {
        const struct rk_visit *visit = &program->schedule[state->visit];
        const struct rk_segment *segment = &program->segments[visit->segment];
        for (; state->next_op < segment->op_count; state->next_op++) {
            struct issue issue = {.op_index = (uint32_t)segment->first_op + state->next_op, .visit = state->visit};
            issue.op = &stage->ops[issue.op_index];
            if ((state->held & (1u << issue.op->lane)) != 0 && state->queued >= replay->ahead)
                return RK_OK;
            state->submitted++;
            issue.submitted = (double)state->submitted * replay->played->launch;
            if (!look_up_events(stage, state, visit, &issue)) {
                char here[256];
                rk_played_describe(replay->played, stage_index, state->visit, issue.op_index, here, sizeof here);
                return rk_fail(replay->error, RK_ERROR, "step program: %s: an event has no instance there", here);
            }
            *moved = true;
            enum rk_status status = issue_op(replay, stage_index, &issue);
            if (status != RK_OK)
                return status;
        }
        state->next_op = 0;
        state->visit++;
    }
    return RK_OK;
}

static enum rk_status run_stage(struct replay *replay, int32_t stage) {
    bool moved = true;
    while (moved) {
        moved = false;
        for (int lane = 0; lane < RK_STREAM_COUNT; lane++) {
            if ((replay->stages[stage].held & (1u << lane)) == 0)
                continue;
            enum rk_status status = advance_lane(replay, stage, lane, &moved);
            if (status != RK_OK)
                return status;
        }
        enum rk_status status = read_program(replay, stage, &moved);
        if (status != RK_OK)
            return status;
    }
    return RK_OK;
}

/* Inside a stage every wait is for an earlier op of the program, so a deadlock always stands in meetings: those are
 * named. */
static enum rk_status deadlock(struct replay *replay) {
    char text[900] = "";
    size_t used = 0;
    for (int32_t stage = 0; stage < replay->played->stage_count; stage++) {
        for (int lane = 0; lane < RK_STREAM_COUNT; lane++) {
            int32_t head = replay->stages[stage].lanes[lane].head;
            if (head == NO_NODE || !replay->nodes[head].met)
                continue;
            const struct node *node = &replay->nodes[head];
            char here[256], peer[64];
            rk_played_describe(replay->played, stage, node->visit, node->op, here, sizeof here);
            rk_played_describe_peers(replay->played, stage, &replay->played->stages[stage].ops[node->op], peer,
                                     sizeof peer);
            int wrote =
                snprintf(text + used, sizeof text - used, "%s%s waits for %s", used > 0 ? "; " : "", here, peer);
            if (wrote < 0 || (size_t)wrote >= sizeof text - used)
                return rk_fail(replay->error, RK_ERROR, "step program would wait for ever: %s", text);
            used += (size_t)wrote;
        }
    }
    return rk_fail(replay->error, RK_ERROR, "step program would wait for ever: %s", text);
}

static void count_progress(const struct replay *replay, int64_t *submitted, int64_t *resolved) {
    *submitted = *resolved = 0;
    for (int32_t stage = 0; stage < replay->played->stage_count; stage++) {
        *submitted += replay->stages[stage].submitted;
        *resolved += replay->stages[stage].resolved;
    }
}

static enum rk_status run_listed(struct replay *replay) {
    int32_t stages = replay->played->stage_count;
    while (replay->work_count > 0) {
        int32_t stage = replay->work[replay->work_first];
        replay->work_first = (replay->work_first + 1) % stages;
        replay->work_count--;
        replay->stages[stage].listed = false;
        enum rk_status status = run_stage(replay, stage);
        if (status != RK_OK)
            return status;
    }
    return RK_OK;
}

static enum rk_status run(struct replay *replay) {
    int64_t wanted = 0, submitted = 0, resolved = 0;
    for (int32_t stage = 0; stage < replay->played->stage_count; stage++)
        wanted += replay->played->stages[stage].op_instances;
    while (resolved < wanted) {
        int64_t before = submitted + resolved;
        for (int32_t stage = 0; stage < replay->played->stage_count; stage++)
            list_stage(replay, stage);
        enum rk_status status = run_listed(replay);
        if (status != RK_OK)
            return status;
        count_progress(replay, &submitted, &resolved);
        if (submitted + resolved > before)
            continue;
        if (submitted == wanted)
            return deadlock(replay);
        replay->ahead = replay->ahead == 0 ? 64 : replay->ahead * 2;
    }
    return RK_OK;
}

static void book_ends(struct replay *replay) {
    for (int32_t index = 0; index < replay->played->stage_count; index++) {
        struct rk_played_stage *stage = &replay->played->stages[index];
        const struct lane *lanes = replay->stages[index].lanes;
        const struct past *last = &lanes[0].last;
        for (int lane = 1; lane < RK_STREAM_COUNT; lane++)
            if (lanes[lane].last.finish > last->finish)
                last = &lanes[lane].last;
        book_wait(stage, lanes[0].last.finish, last->finish, last);
        stage->end = last->finish;
    }
}

static enum rk_status make_states(struct replay *replay) {
    struct rk_played *played = replay->played;
    size_t stages = (size_t)played->stage_count, channels = (size_t)played->channel_count;
    replay->stages = calloc(stages, sizeof *replay->stages);
    replay->channels = calloc(channels, sizeof *replay->channels);
    replay->work = calloc(stages, sizeof *replay->work);
    if (!replay->stages || !replay->channels || !replay->work)
        return no_memory(replay);
    for (size_t i = 0; i < stages; i++) {
        struct stage_state *state = &replay->stages[i];
        uint32_t events = played->stages[i].event_instances;
        state->events = calloc((size_t)events + 1, sizeof *state->events);
        state->serials = calloc(2 * channels, sizeof *state->serials);
        if (!state->events || !state->serials)
            return no_memory(replay);
        for (uint32_t event = 0; event < events; event++)
            state->events[event].node = NO_NODE;
        for (int lane = 0; lane < RK_STREAM_COUNT; lane++)
            state->lanes[lane].head = state->lanes[lane].tail = NO_NODE;
    }
    return RK_OK;
}

enum rk_status rk_simulator_replay(struct rk_played *played, struct rk_error *error) {
    struct replay replay = {.played = played, .free_nodes = NO_NODE, .error = error};
    enum rk_status status = make_states(&replay);
    if (status == RK_OK)
        status = run(&replay);
    if (status == RK_OK)
        book_ends(&replay);
    for (int32_t i = 0; replay.stages != NULL && i < played->stage_count; i++) {
        free(replay.stages[i].events);
        free(replay.stages[i].serials);
    }
    for (int32_t i = 0; replay.channels != NULL && i < played->channel_count; i++)
        free(replay.channels[i].ring);
    free(replay.stages);
    free(replay.channels);
    free(replay.work);
    free(replay.nodes);
    return status;
}
