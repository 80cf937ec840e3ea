/* All tensors of a model, whatever the layout: what files of weights and checkpoints are checked against. */
#ifndef RK_EXECUTOR_TENSOR_TABLE_H
#define RK_EXECUTOR_TENSOR_TABLE_H

#include "executor/tensor_file.h"
#include "model/program.h"

struct rk_tensor_table {
    struct rk_tensor_entry *entries; /* FP32; owned */
    size_t count;
};

/* The tensors of every stage, whole shapes, tied copies once: the embedding, the layers in their order, what follows
 * them; by name within a layer, so that the order is that of the model and not of a layout. Free with
 * rk_tensor_table_free. */
enum rk_status rk_tensor_table_make(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                                    bool trained_only, struct rk_tensor_table *table, struct rk_error *error);
void rk_tensor_table_free(struct rk_tensor_table *table);
/* The entry of that name, or NULL. */
const struct rk_tensor_entry *rk_tensor_table_find(const struct rk_tensor_table *table, const char *name);

#endif
