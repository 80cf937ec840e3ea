#include "executor/transport.h"

#include <stddef.h>

/* A build without NCCL has the function, so that callers decide by its result and not by the build. */
#ifndef RK_HAVE_NCCL
const struct rk_transport_table *rk_transport_nccl(void) {
    return NULL;
}
#endif
