/* A cost source that remembers: every distinct shape and place is asked of the source behind it once. */
#ifndef RK_MODEL_COST_CACHE_H
#define RK_MODEL_COST_CACHE_H

#include "model/cost.h"

struct rk_cost_cache;

/* The source must outlive the cache. Free with rk_cost_cache_free. Refusals are not remembered. One thread at a time.
 */
enum rk_status rk_cost_cache_make(const struct rk_cost_source *source, struct rk_cost_cache **cache,
                                  struct rk_error *error);
void rk_cost_cache_free(struct rk_cost_cache *cache);
struct rk_cost_source rk_cost_cache_source(struct rk_cost_cache *cache);

#endif
