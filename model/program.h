/* The step program: what one optimizer step does on one pipeline stage, read alike by the simulator, the memory layout
 * and the executor. Nothing about a candidate is known to only one of them.
 *
 * All D replicas of a stage run the same program; a rank's place in its groups is given to the transports when they
 * open. A program has
 *   - a buffer table: every byte that the step touches, with its owner, scope and, for views, its place in another one;
 *   - segments: straight lists of ops for one kind of visit (the forward of a routed block, its backward, a transfer,
 *     the loss, the update, ...), shared by all layers and micro-batches of that kind;
 *   - a schedule: the ordered visits of the step, each a segment with the layer, micro-batch and slot it is run for.
 * Executing a program = for each visit, for each op: resolve the operands, wait for its events, run it on its stream,
 * record its events. A wait means the latest record that precedes it in program order (the order of the schedule); an
 * event that was never recorded is complete. */
#ifndef RK_MODEL_PROGRAM_H
#define RK_MODEL_PROGRAM_H

#include "base/status.h"
#include "model/candidate.h"
#include "model/ops.h"

#include <stddef.h>

/* For whom the bytes are held: the rows of every memory account. */
enum rk_owner {
    RK_OWNER_WEIGHTS,
    RK_OWNER_GRADIENTS,
    RK_OWNER_OPTIMIZER,   /* masters and moments (shards) */
    RK_OWNER_ACTIVATIONS, /* kept from forward to backward */
    RK_OWNER_ROUTES,      /* indices, maps, counts and weights of routes: kept, never recomputed */
    RK_OWNER_EXCHANGE,    /* receive and return buffers of EP and stage transfers */
    RK_OWNER_LOSS,        /* logits chunks */
    RK_OWNER_TRANSIENT,   /* values that live within one visit */
    RK_OWNER_WORKSPACE,   /* kernels' scratch */
    RK_OWNER_OFFLOAD,     /* staging rings of offloaded activations; in host space the pool itself */
    RK_OWNER_DATA,        /* tokens, targets, step state, loss sums, load counters */
    RK_OWNER_COUNT
};
const char *rk_owner_name(enum rk_owner owner);

enum rk_space { RK_SPACE_DEVICE, RK_SPACE_HOST };

/* How many instances of a buffer or an event exist, in which order, and which one a visit means. A layer's ordinal is
 * its place among the stage's layers. */
enum rk_scope {
    RK_SCOPE_STEP,             /* one instance, alive for the whole step */
    RK_SCOPE_LAYER,            /* one for each layer of layer_kinds, by ordinal; alive for the whole step */
    RK_SCOPE_SLOT,             /* one for each slot: a live micro-batch of a virtual stage, from forward to backward */
    RK_SCOPE_LAYER_SLOT,       /* one for each slot and each layer of layer_kinds that may hold it; see slot_pool */
    RK_SCOPE_LAYER_RING,       /* ring_size instances, taken in turn: ordinal modulo ring_size; alive for the step */
    RK_SCOPE_MICRO_BATCH_RING, /* ring_size instances: micro-batch modulo ring_size; alive for the step */
    RK_SCOPE_MICRO_BATCH,      /* one for each micro-batch (tokens and targets) */
    RK_SCOPE_VISIT /* alive within one visit, from its first to its last op that touches it; shares memory */
};

#define RK_NO_BUFFER UINT32_MAX

struct rk_buffer {
    char name[48]; /* "block.qkv", "head.logits": unique in the program */
    enum rk_owner owner;
    enum rk_space space;
    enum rk_scope scope;
    int64_t bytes;       /* of one instance */
    int32_t ring_size;   /* ring scopes only */
    uint8_t layer_kinds; /* bit 1 << enum rk_block: which layers have an instance (layer scopes) */
    uint32_t view_of; /* RK_NO_BUFFER, or the buffer inside which every instance lies (weights inside a flat space) */
    /* For views: instance i begins at view_offset[i] bytes inside instance 0 of view_of. Owned by the program. */
    int64_t *view_offset;
    int64_t instance_count; /* derived by rk_program_finish from scope, layers and slots */
};

struct rk_operand {
    uint32_t buffer;      /* index into the buffer table or RK_NO_BUFFER */
    int16_t layer_shift;  /* 0, or +1 / -1: the instance of the next / previous layer of the stage's order (a block
                             writes its output where the next block expects its input) */
    uint16_t shard_group; /* enum rk_group_kind: the operand is a shard of the ranks of this group. It begins
                             index · shard_bytes after offset, index being the rank's place in the group. RK_GROUP_NONE:
                             the same place on every rank */
    int64_t offset;       /* bytes inside the instance */
    int64_t shard_bytes;  /* 0 without shard_group */
};

enum { RK_OP_WAITS = 6, RK_OP_RECORDS = 3 };
#define RK_NO_EVENT UINT16_MAX

struct rk_event_reference {
    uint16_t event;      /* index, or RK_NO_EVENT */
    int16_t layer_shift; /* as in an operand */
};

struct rk_op {
    struct rk_op_shape shape;
    enum rk_stream_kind stream;
    enum rk_phase phase;
    float parameter[RK_OP_PARAMETERS];
    struct rk_operand operand[RK_OP_OPERANDS];
    struct rk_event_reference wait[RK_OP_WAITS];
    struct rk_event_reference record[RK_OP_RECORDS];
};

/* The stream that an op of this shape runs on: it follows from the kind, and for stage transfers from the peer. */
enum rk_stream_kind rk_op_stream(const struct rk_op_shape *shape);

/* An event has instances as a buffer of that scope has (STEP, SLOT, LAYER_SLOT and the rings are used). */
struct rk_event {
    char name[32];
    enum rk_scope scope;
    int32_t ring_size;      /* ring scopes only */
    int64_t instance_count; /* derived by rk_program_finish */
};

struct rk_segment {
    char name[48];   /* "moe block forward", "send activations" */
    size_t first_op; /* into ops[] */
    size_t op_count;
};

struct rk_visit {
    uint32_t segment;
    int32_t layer;         /* model layer or -1 */
    int32_t micro_batch;   /* or -1 */
    int32_t virtual_stage; /* of this rank, or -1 */
    int32_t slot;          /* or -1 */
    int32_t ordinal;       /* number of the layer among the stage's layers in execution order, or -1 */
};

/* One parameter tensor: how checkpoints, the loader and the reduction see the flat spaces. */
struct rk_tensor {
    char name[64];    /* "embed", "norm", "head", "blocks.3.attn.{norm,wqkv,wo,q_norm,k_norm}",
                         "blocks.3.moe.{norm,wr,w13,w2,bias}", "blocks.3.shared.{w13,w2}",
                         "blocks.3.mlp.{norm,w13,w2}"; of models that are planned, not run, also "embed_norm" and the
                         other rows of RK_PARAMETER_TABLE (model/lower.h) */
    int32_t layer;    /* or -1 */
    bool expert;      /* spread over the EP-MP group along dimension 0 (shape holds the local number) */
    bool decayed;     /* takes weight decay (matrices, not gains) */
    bool trained;     /* has gradient, master and moments in its flat space. Else (moe.bias): FP32, in no flat space */
    bool tied_copy;   /* "embed" on the last stage when the first stage has it too: the same values, counted once */
    int32_t rank;     /* number of dimensions, 1 to 3 */
    int64_t dim[3];   /* local shape on one rank */
    int64_t offset;   /* elements inside its flat space; -1 when not trained */
    uint32_t buffer;  /* its weight: a view into the flat space's weights, or its own buffer when not trained.
                         RK_NO_BUFFER: no op reads it; its architecture is planned, not run */
    int64_t instance; /* of that buffer */
    enum { RK_INIT_NORMAL, RK_INIT_ONE, RK_INIT_ZERO } initial;
};

enum { RK_SHARD_ALIGNMENT = 64 }; /* elements */

/* A run of one flat space that is reduced, updated and gathered together. Its length is a multiple of
 * RK_SHARD_ALIGNMENT · the space's replicas, so that every rank's shard is a whole, aligned run; what the tensors leave
 * is padding at its end. A bucket holds only decayed or only undecayed tensors: shards lie at different places on
 * different ranks, which run one program. */
struct rk_bucket {
    bool expert; /* over EP-DP inside the expert space; else over D inside the dense space */
    bool decayed;
    int64_t offset; /* elements */
    int64_t elements;
};

/* The flat spaces: dense parameters (replicated over D) and expert parameters (replicated over EP-DP). In each: weights
 * in the compute type, FP32 gradients, and this rank's shards of master, first and second moment. Buckets lie one after
 * another in the order in which backward completes them; the shard of bucket b begins at elements b.offset / replicas
 * of master and moments, and at b.offset + index · b.elements / replicas of weights and gradients. */
struct rk_flat_space {
    int64_t elements; /* with padding; 0: the stage has none, and no buffers */
    int32_t replicas; /* D or EP-DP */
    uint32_t weights, gradients, master, first_moment, second_moment; /* buffers */
};

/* The values of rk_program.sums, f64 each. */
enum rk_sum { RK_SUM_CROSS_ENTROPY, RK_SUM_BALANCE, RK_SUM_Z, RK_SUM_SQUARED_NORM, RK_SUM_COUNT };

struct rk_program {
    struct rk_candidate candidate;
    int32_t stage; /* pipeline rank */
    enum rk_data_type type;
    int32_t layer_count;                  /* of this stage, all virtual stages */
    int32_t *layers;                      /* model layer of each, in order of virtual stage; owned */
    uint8_t *layer_kinds;                 /* enum rk_block of each; owned */
    int32_t *layer_virtual_stage;         /* owned */
    int32_t slots[RK_VIRTUAL_STAGES_MAX]; /* highest number of live micro-batches of each virtual stage */
    /* How kept values share memory between virtual stages. 0: each has `slots` slots of its own, and a layer has an
     * instance for each slot of its virtual stage. Else all take slots from one pool of this many, the highest number
     * of chunks alive at once, and the k-th layer (of its kinds) of a chunk has an instance for each slot, whatever the
     * chunk. The lowering takes what needs fewer bytes: the pool where chunks are alike. */
    int32_t slot_pool;
    int64_t windows;            /* micro-batches of all data ranks: m · D, the windows of T tokens of a step */
    int64_t kept_bytes[2];      /* by enum rk_block: activations of one block and micro-batch kept from forward to
                                   backward, routes apart; 0 when the stage has no such block */
    int64_t offloaded_bytes[2]; /* of those, what leaves the device: the effective offload */

    struct rk_buffer *buffers;
    size_t buffer_count;
    struct rk_event *events;
    size_t event_count;
    struct rk_op *ops;
    size_t op_count;
    struct rk_segment *segments;
    size_t segment_count;
    struct rk_visit *schedule;
    size_t visit_count;
    struct rk_tensor *tensors;
    size_t tensor_count;
    struct rk_bucket *buckets;
    size_t bucket_count;
    struct rk_flat_space dense, expert;

    /* Buffers that the host fills before the step or reads after it; RK_NO_BUFFER where the stage has none. */
    uint32_t tokens;     /* i32[T], one per micro-batch, first stage */
    uint32_t targets;    /* i32[T], one per micro-batch, last stage */
    uint32_t step_state; /* f32[8], see ADAMW */
    uint32_t sums;       /* f64[RK_SUM_COUNT], over all ranks at the end of the step: cross-entropy, already a mean over
                            the global batch; balance loss and z loss, summed over layers and windows: the reader
                            divides by `windows`; squared gradient norm */
    uint32_t load;       /* i64[2N+1] of each routed layer, see ROUTE_MAP; RK_NO_BUFFER without one */

    /* Derived by rk_program_finish, for rk_program_instance. [kinds][ordinal], kinds a set of block kinds (bit 1 <<
     * kind): the first instance of the ordinal's layer in layer scope and in layer-and-slot scope, for buffers of these
     * kinds; [layer_count] is the number of all. Owned. */
    int64_t *layer_instance[4], *layer_slot_instance[4];
};

/* Lowers a candidate for one stage. The program is the caller's; free with rk_program_free. RK_USAGE when the candidate
 * is inconsistent with the architecture, RK_INFEASIBLE with need and have when a size passes what the formats hold (row
 * numbers are 32-bit). Any architecture is lowered, so that it can be planned; a program computes the model only if
 * rk_architecture_runnable says so. What others have beyond the ops is held (weights, gradients, states) but not
 * computed: biases, sinks, gates, further norms; limited spans count as full ones; latent attention is in
 * lower_latent.c. */
enum rk_status rk_program_lower(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                                int32_t stage, struct rk_program **program, struct rk_error *error);
void rk_program_free(struct rk_program *program);

/* Derives what follows from the tables: instance counts and the arrays for rk_program_instance. The last step of making
 * a program. RK_ERROR when memory runs out or a scope does not fit its buffer. */
enum rk_status rk_program_finish(struct rk_program *program, struct rk_error *error);

/* The instance of a buffer that an operand means in a visit; -1 when the visit has none (a defect of the lowering). */
int64_t rk_program_instance(const struct rk_program *program, const struct rk_operand *operand,
                            const struct rk_visit *visit);
/* The same for an event. */
int64_t rk_program_event_instance(const struct rk_program *program, const struct rk_event_reference *reference,
                                  const struct rk_visit *visit);

/* Checks what the three readers rely on: every reference in range and every required operand there; operands of
 * rk_op_operand_bytes inside their buffers, and no buffer larger than its operands; views, tensors and buckets in their
 * places; and over two steps, every value written before it is read (of visit scope in the same visit) and every pair
 * of accesses to a byte, one of them a write, ordered by a stream or events. RK_ERROR names op, segment and buffer.
 * Used by the tests on every program they make. */
enum rk_status rk_program_check(const struct rk_program *program, struct rk_error *error);

#endif
