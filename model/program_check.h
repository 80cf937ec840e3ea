/* The parts of rk_program_check. Private to model/program_check*.c. */
#ifndef RK_MODEL_PROGRAM_CHECK_H
#define RK_MODEL_PROGRAM_CHECK_H

#include "model/program.h"

/* The bytes of its buffer's instance that an operand covers, from *begin to the returned end. Of a shard, those of the
 * last rank of its group. */
int64_t rk_program_operand_range(const struct rk_program *program, const struct rk_op *op, int operand, int64_t *begin);

/* Plays the schedule of two steps: every value is written before it is read, values of visit scope in the same visit;
 * and of two accesses to a byte of which one writes, the first is certainly over when the second starts. */
enum rk_status rk_program_check_order(const struct rk_program *program, struct rk_error *error);

#endif
