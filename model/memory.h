/* The memory layout: every instance of every buffer of a step program gets an offset in one arena (and the host space's
 * in another), so that the peak is known to the byte before anything is allocated.
 *
 * Instances that live for the step or for a slot never share bytes. Instances of visit scope share: two of them overlap
 * in the arena only if, in every segment that uses both, the last op that touches one happens before (program order on
 * a stream, events between streams) the first op that touches the other. Segments follow one another on the compute
 * stream, so visit buffers of different segments share freely once each segment's other streams are joined; the layout
 * verifies the join and refuses a program without it. */
#ifndef RK_MODEL_MEMORY_H
#define RK_MODEL_MEMORY_H

#include "model/program.h"

enum { RK_MEMORY_ALIGNMENT = 256 }; /* bytes; what vector loads, TMA and symmetric windows all accept */

#define RK_GIB 1073741824.0 /* bytes */

/* Bytes rounded up to the alignment. */
static inline int64_t rk_memory_aligned(int64_t bytes) {
    return (bytes + RK_MEMORY_ALIGNMENT - 1) / RK_MEMORY_ALIGNMENT * RK_MEMORY_ALIGNMENT;
}

struct rk_memory_layout {
    int64_t arena_bytes;                 /* device */
    int64_t host_bytes;                  /* offload pool */
    int64_t owner_bytes[RK_OWNER_COUNT]; /* device bytes by owner; visit scope counts under its owner by its share of
                                            the peak segment, so that the sum is arena_bytes (alignment included) */
    int64_t persistent_bytes;            /* device: step, layer, ring and micro-batch scopes */
    int64_t slot_bytes;                  /* device: slot scopes, all slots */
    int64_t visit_bytes;                 /* the region that visit scope shares */
    uint32_t peak_segment;               /* the segment that needs it whole */
    int64_t **offset;                    /* [buffer][instance], bytes from the start of its space; owned */
    size_t buffer_count;
};

/* Lays a program out. RK_ERROR when memory runs out or when a visit may begin to use the shared region while another
 * stream still uses it for an earlier visit. Free with rk_memory_layout_free. */
enum rk_status rk_memory_layout_make(const struct rk_program *program, struct rk_memory_layout *layout,
                                     struct rk_error *error);
void rk_memory_layout_free(struct rk_memory_layout *layout);

/* Proves a layout against its program without using the code that made it: no two instances that may be alive at the
 * same time overlap. RK_ERROR names the buffers and the op. */
enum rk_status rk_memory_layout_check(const struct rk_program *program, const struct rk_memory_layout *layout,
                                      struct rk_error *error);

/* Where values of visit scope end, for the poison of debug runs: buffer[first[i]] to buffer[first[i + 1] - 1] are those
 * of which op i of the program is the last user in its segment, all other users being over when it starts. Filled on
 * the op's stream behind it, the poison comes before every reuse. A buffer whose last users run on two streams side by
 * side is not listed. Free with rk_memory_release_free. */
struct rk_release_list {
    size_t *first;    /* op_count + 1 */
    uint32_t *buffer; /* buffers of visit scope */
};
enum rk_status rk_memory_release_make(const struct rk_program *program, struct rk_release_list *list,
                                      struct rk_error *error);
void rk_memory_release_free(struct rk_release_list *list);

#endif
