#include "executor/tensor_table.h"

#include "executor/shards.h"

#include <stdlib.h>
#include <string.h>

static enum rk_status add_stage(const struct rk_program *program, bool trained_only, struct rk_tensor_table *table,
                                struct rk_error *error) {
    size_t wanted = table->count + program->tensor_count;
    struct rk_tensor_entry *entries = realloc(table->entries, (wanted + 1) * sizeof *entries);
    if (entries != NULL)
        table->entries = entries;
    bool *trained = realloc(table->trained, (wanted + 1) * sizeof *trained);
    if (trained != NULL)
        table->trained = trained;
    if (entries == NULL || trained == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the table of tensors");
    for (size_t i = 0; i < program->tensor_count; i++) {
        const struct rk_tensor *tensor = &program->tensors[i];
        if (tensor->tied_copy || (trained_only && !tensor->trained))
            continue;
        struct rk_tensor_entry *entry = &table->entries[table->count];
        memset(entry, 0, sizeof *entry);
        memcpy(entry->name, tensor->name, sizeof entry->name);
        entry->rank = tensor->rank;
        entry->type = RK_F32;
        rk_tensor_global_shape(program, tensor, entry->shape);
        table->trained[table->count++] = tensor->trained;
    }
    return RK_OK;
}

enum rk_status rk_tensor_table_make(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                                    bool trained_only, struct rk_tensor_table *table, struct rk_error *error) {
    struct rk_tensor_table made = {0};
    enum rk_status status = RK_OK;
    for (int32_t stage = 0; stage < candidate->pipeline && status == RK_OK; stage++) {
        struct rk_program *program = NULL;
        status = rk_program_lower(architecture, candidate, stage, &program, error);
        if (status == RK_OK)
            status = add_stage(program, trained_only, &made, error);
        rk_program_free(program);
    }
    if (status != RK_OK) {
        rk_tensor_table_free(&made);
        return status;
    }
    *table = made;
    return RK_OK;
}

void rk_tensor_table_free(struct rk_tensor_table *table) {
    free(table->entries);
    free(table->trained);
    memset(table, 0, sizeof *table);
}

const struct rk_tensor_entry *rk_tensor_table_find(const struct rk_tensor_table *table, const char *name) {
    for (size_t i = 0; i < table->count; i++)
        if (strcmp(table->entries[i].name, name) == 0)
            return &table->entries[i];
    return NULL;
}
