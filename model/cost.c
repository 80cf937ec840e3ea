#include "model/cost.h"

#include <string.h>

static const char *const origin_names[RK_ORIGIN_COUNT] = {
#define RK_ORIGIN_NAME(name, text) text,
    RK_ORIGIN_TABLE(RK_ORIGIN_NAME)
#undef RK_ORIGIN_NAME
};

const char *rk_origin_name(enum rk_origin origin) {
    return (unsigned)origin < RK_ORIGIN_COUNT ? origin_names[origin] : "unknown";
}

enum rk_origin rk_origin_from_name(const char *name) {
    int origin = 0;
    while (origin < RK_ORIGIN_COUNT && strcmp(origin_names[origin], name) != 0)
        origin++;
    return (enum rk_origin)origin;
}
