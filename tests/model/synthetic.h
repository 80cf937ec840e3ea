/* Step programs made by hand for the tests of the simulator: one visit per op or per chunk, prices read off the shape.
 */
#ifndef RK_TESTS_MODEL_SYNTHETIC_H
#define RK_TESTS_MODEL_SYNTHETIC_H

#include "model/simulator.h"

enum { SYNTHETIC_EVENTS = 64 };

/* An empty program of a stage, with SYNTHETIC_EVENTS events of one instance each. Aborts without memory. */
struct rk_program *synthetic_make(int32_t pipeline, int32_t data_parallel, int32_t stage);
void synthetic_free(struct rk_program *program);

/* Adds a segment of one op and returns its number. ticks is the op's first dimension: its price is ticks / 1000 s. */
uint32_t synthetic_segment(struct rk_program *program, enum rk_op_kind kind, enum rk_group_kind group,
                           enum rk_stream_kind stream, int64_t ticks);
/* The op of a segment, to give it waits and records. */
struct rk_op *synthetic_op(struct rk_program *program, uint32_t segment);
void synthetic_wait(struct rk_op *op, uint16_t event);
void synthetic_record(struct rk_op *op, uint16_t event);
void synthetic_visit(struct rk_program *program, uint32_t segment, int32_t micro_batch);

/* Prices ticks / 1000 s · scale (context: double *scale, NULL: 1). */
struct rk_cost_source synthetic_costs(double *scale);

/* A machine whose streams overlap (GPU), and one of `devices` shared ones with serial streams (CPU). */
struct rk_machine synthetic_gpu(void);
struct rk_machine synthetic_cpu(int32_t devices);

#endif
