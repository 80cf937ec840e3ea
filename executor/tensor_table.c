#include "executor/tensor_table.h"

#include "executor/shards.h"

#include <stdlib.h>
#include <string.h>

/* An entry and its place in the model. */
struct placed_entry {
    struct rk_tensor_entry entry;
    int32_t place;
};

struct placed_entries {
    struct placed_entry *items;
    size_t count;
};

static int32_t place_of(const struct rk_tensor *tensor) {
    return tensor->layer >= 0 ? tensor->layer : strcmp(tensor->name, "embed") == 0 ? -1 : INT32_MAX;
}

static int compare_places(const void *left, const void *right) {
    const struct placed_entry *a = left, *b = right;
    return a->place != b->place ? (a->place > b->place) - (a->place < b->place) : strcmp(a->entry.name, b->entry.name);
}

static enum rk_status add_stage(const struct rk_program *program, bool trained_only, struct placed_entries *list,
                                struct rk_error *error) {
    struct placed_entry *items = realloc(list->items, (list->count + program->tensor_count + 1) * sizeof *items);
    if (items == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the table of tensors");
    list->items = items;
    for (size_t i = 0; i < program->tensor_count; i++) {
        const struct rk_tensor *tensor = &program->tensors[i];
        if (tensor->tied_copy || (trained_only && !tensor->trained))
            continue;
        struct placed_entry *item = &items[list->count++];
        memset(item, 0, sizeof *item);
        memcpy(item->entry.name, tensor->name, sizeof item->entry.name);
        item->entry.rank = tensor->rank;
        item->entry.type = RK_F32;
        item->place = place_of(tensor);
        rk_tensor_global_shape(program, tensor, item->entry.shape);
    }
    return RK_OK;
}

enum rk_status rk_tensor_table_make(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                                    bool trained_only, struct rk_tensor_table *table, struct rk_error *error) {
    struct placed_entries list = {0};
    struct rk_tensor_entry *entries = NULL;
    enum rk_status status = RK_OK;
    for (int32_t stage = 0; stage < candidate->pipeline && status == RK_OK; stage++) {
        struct rk_program *program = NULL;
        status = rk_program_lower(architecture, candidate, stage, &program, error);
        if (status != RK_OK)
            goto free_list;
        status = add_stage(program, trained_only, &list, error);
        rk_program_free(program);
    }
    if (status != RK_OK)
        goto free_list;
    entries = calloc(list.count + 1, sizeof *entries);
    if (entries == NULL) {
        status = rk_fail(error, RK_ERROR, "out of memory for the table of tensors");
        goto free_list;
    }
    if (list.count > 0)
        qsort(list.items, list.count, sizeof *list.items, compare_places);
    for (size_t i = 0; i < list.count; i++)
        entries[i] = list.items[i].entry;
    *table = (struct rk_tensor_table){entries, list.count};
    entries = NULL;
free_list:
    free(entries);
    free(list.items);
    return status;
}

void rk_tensor_table_free(struct rk_tensor_table *table) {
    free(table->entries);
    memset(table, 0, sizeof *table);
}

const struct rk_tensor_entry *rk_tensor_table_find(const struct rk_tensor_table *table, const char *name) {
    for (size_t i = 0; i < table->count; i++)
        if (strcmp(table->entries[i].name, name) == 0)
            return &table->entries[i];
    return NULL;
}
