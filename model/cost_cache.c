#include "model/cost_cache.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    uint64_t hash; /* 0: empty */
    struct rk_op_shape shape;
    struct rk_cost_place place;
    struct rk_cost cost;
};

struct rk_cost_cache {
    struct rk_cost_source source;
    struct entry *entries;
    size_t capacity, count; /* capacity is a power of two, at least twice count */
};

static uint64_t key_hash(const struct rk_op_shape *shape, const struct rk_cost_place *place) {
    uint64_t share;
    memcpy(&share, &place->row_share, sizeof share);
    uint64_t hash = rk_op_shape_hash(shape);
    hash = (hash ^ (uint64_t)(uint32_t)place->group_size) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ (hash >> 29) ^ (uint64_t)(uint32_t)place->concurrent) * 0xBF58476D1CE4E5B9u;
    hash = (hash ^ (hash >> 32) ^ share ^ (place->crosses_hosts ? 1u : 0u)) * 0x94D049BB133111EBu;
    hash ^= hash >> 31;
    return hash == 0 ? 1 : hash;
}

static bool key_equal(const struct entry *entry, uint64_t hash, const struct rk_op_shape *shape,
                      const struct rk_cost_place *place) {
    return entry->hash == hash && entry->place.group_size == place->group_size &&
           entry->place.crosses_hosts == place->crosses_hosts && entry->place.concurrent == place->concurrent &&
           !(entry->place.row_share < place->row_share) && !(entry->place.row_share > place->row_share) &&
           rk_op_shape_equal(&entry->shape, shape);
}

static struct entry *find(struct entry *entries, size_t capacity, uint64_t hash, const struct rk_op_shape *shape,
                          const struct rk_cost_place *place) {
    size_t at = (size_t)hash & (capacity - 1);
    while (entries[at].hash != 0 && !key_equal(&entries[at], hash, shape, place))
        at = (at + 1) & (capacity - 1);
    return &entries[at];
}

static enum rk_status grow(struct rk_cost_cache *cache, struct rk_error *error) {
    size_t capacity = cache->capacity == 0 ? 256 : cache->capacity * 2;
    struct entry *entries = calloc(capacity, sizeof *entries);
    if (entries == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for %zu prices", capacity);
    for (size_t i = 0; i < cache->capacity; i++) {
        const struct entry *old = &cache->entries[i];
        if (old->hash != 0)
            *find(entries, capacity, old->hash, &old->shape, &old->place) = *old;
    }
    free(cache->entries);
    cache->entries = entries;
    cache->capacity = capacity;
    return RK_OK;
}

static enum rk_status price(void *context, const struct rk_op_shape *shape, const struct rk_cost_place *place,
                            struct rk_cost *cost, struct rk_error *error) {
    struct rk_cost_cache *cache = context;
    uint64_t hash = key_hash(shape, place);
    struct entry *entry = find(cache->entries, cache->capacity, hash, shape, place);
    if (entry->hash != 0) {
        *cost = entry->cost;
        return RK_OK;
    }
    struct rk_cost fresh;
    enum rk_status status = cache->source.price(cache->source.context, shape, place, &fresh, error);
    if (status != RK_OK)
        return status;
    if ((cache->count + 1) * 2 > cache->capacity) {
        if ((status = grow(cache, error)) != RK_OK)
            return status;
        entry = find(cache->entries, cache->capacity, hash, shape, place);
    }
    *entry = (struct entry){.hash = hash, .shape = *shape, .place = *place, .cost = fresh};
    cache->count++;
    *cost = fresh;
    return RK_OK;
}

enum rk_status rk_cost_cache_make(const struct rk_cost_source *source, struct rk_cost_cache **cache,
                                  struct rk_error *error) {
    struct rk_cost_cache *made = calloc(1, sizeof *made);
    if (made == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the price cache");
    made->source = *source;
    enum rk_status status = grow(made, error);
    if (status != RK_OK) {
        free(made);
        return status;
    }
    *cache = made;
    return RK_OK;
}

void rk_cost_cache_free(struct rk_cost_cache *cache) {
    if (cache == NULL)
        return;
    free(cache->entries);
    free(cache);
}

struct rk_cost_source rk_cost_cache_source(struct rk_cost_cache *cache) {
    return (struct rk_cost_source){.price = price, .context = cache};
}
