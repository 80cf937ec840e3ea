#include "oracle.h"
#include "base/random.h"
#include "kernels/bf16.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double *widen(enum rk_element element, int64_t count, const void *bytes) {
    double *wide = malloc((size_t)(count > 0 ? count : 1) * sizeof *wide);
    for (int64_t i = 0; i < count && wide != NULL; i++) {
        switch (element) {
        case RK_ELEMENT_BYTE:
            wide[i] = (double)((const uint8_t *)bytes)[i];
            break;
        case RK_ELEMENT_F32:
            wide[i] = (double)((const float *)bytes)[i];
            break;
        case RK_ELEMENT_BF16:
            wide[i] = (double)rk_bf16_widen(((const uint16_t *)bytes)[i]);
            break;
        case RK_ELEMENT_F64:
            wide[i] = ((const double *)bytes)[i];
            break;
        case RK_ELEMENT_I32:
            wide[i] = (double)((const int32_t *)bytes)[i];
            break;
        case RK_ELEMENT_I64:
            wide[i] = (double)((const int64_t *)bytes)[i];
            break;
        }
    }
    return wide;
}

static void narrow(enum rk_element element, int64_t count, const double *wide, void *bytes) {
    for (int64_t i = 0; i < count; i++) {
        if (element == RK_ELEMENT_F32) {
            ((float *)bytes)[i] = (float)wide[i];
        } else if (element == RK_ELEMENT_BF16) {
            ((uint16_t *)bytes)[i] = rk_bf16_round((float)wide[i]);
        }
    }
}

static bool is_workspace(const struct rk_oracle_result *result, int operand) {
    return operand == rk_op_workspace_operand(result->shape.kind);
}

/* Reads every operand of the call into bytes[]. */
static enum rk_status read_all(struct rk_oracle_result *result, void *bytes[], struct rk_error *error) {
    const struct rk_operands *operands = &result->operands;
    for (int i = 0; i < rk_op_operand_count(result->shape.kind); i++) {
        if (operands->call.operand[i] == NULL || is_workspace(result, i)) {
            continue;
        }
        bytes[i] = malloc((size_t)operands->bytes[i] + 1);
        if (bytes[i] == NULL) {
            return rk_fail(error, RK_ERROR, "out of memory");
        }
        enum rk_status status = rk_operands_read(operands, i, bytes[i], error);
        if (status != RK_OK) {
            return status;
        }
    }
    return RK_OK;
}

static void widen_all(const struct rk_oracle_result *result, void *const bytes[], double *wide[]) {
    for (int i = 0; i < RK_OP_OPERANDS; i++) {
        if (bytes[i] != NULL) {
            wide[i] = widen(rk_op_operand_element(&result->shape, i), result->elements[i], bytes[i]);
        }
    }
}

static struct rk_reference reference_of(const struct rk_oracle_result *result, double *const operand[]) {
    struct rk_reference reference = {
        .shape = &result->shape,
        .parameter = result->operands.call.parameter,
        .serial = result->operands.call.serial,
        .group_rank = result->operands.call.group_rank,
    };
    memcpy(reference.operand, operand, sizeof reference.operand);
    return reference;
}

/* Applies what the case changes of the call that rk_operands_make made. */
static enum rk_status apply_case(const struct rk_op_case *op_case, struct rk_operands *operands,
                                 struct rk_error *error) {
    for (int i = 0; i < RK_OP_OPERANDS; i++) {
        if ((op_case->absent >> i & 1) != 0) {
            operands->call.operand[i] = NULL;
        } else if ((op_case->present >> i & 1) != 0) {
            operands->call.operand[i] = operands->memory[i];
        }
    }
    for (int i = 0; i < RK_OP_PARAMETERS; i++) {
        if (op_case->parameter[i] != 0) {
            operands->call.parameter[i] = op_case->parameter[i];
        }
    }
    enum rk_op_family family = rk_op_family(operands->shape.kind);
    int64_t experts = operands->shape.dim[family == RK_OP_FAMILY_GROUPED_GEMM ? 1 : 2];
    bool given = false;
    for (int i = 0; i < 9; i++) {
        given = given || op_case->offsets[i] != 0;
    }
    if (!given || experts > 8) {
        return RK_OK;
    }
    return rk_operands_set_offsets(operands, op_case->offsets, error);
}

/* Elements of an operand within the valid prefix. */
static int64_t valid_elements(const struct rk_oracle_result *result, int operand) {
    const struct rk_operands *operands = &result->operands;
    int64_t capacity = result->shape.dim[0];
    bool prefix = rk_op_operand_is_prefix(result->shape.kind, operand) && operands->valid_rows >= 0 && capacity > 0;
    return prefix ? result->elements[operand] / capacity * operands->valid_rows : result->elements[operand];
}

/* Gives a backward op what its forward would have left, rounded as it is stored. */
static enum rk_status prepare(struct rk_oracle_result *result, struct rk_error *error) {
    double *wide[RK_OP_OPERANDS] = {NULL};
    void *bytes[RK_OP_OPERANDS] = {NULL};
    enum rk_status status = read_all(result, bytes, error);
    widen_all(result, bytes, wide);
    struct rk_reference reference = reference_of(result, wide);
    bool prepared = result->shape.kind == RK_OP_RMSNORM_BACKWARD || result->shape.kind == RK_OP_ATTENTION_BACKWARD;
    if (status == RK_OK && prepared) {
        rk_reference_prepare(&reference);
    }
    for (int i = 0; i < RK_OP_OPERANDS; i++) {
        bool input = bytes[i] != NULL && rk_op_operand_access(result->shape.kind, i) == RK_ACCESS_READ;
        if (status == RK_OK && prepared && input) {
            narrow(rk_op_operand_element(&result->shape, i), result->elements[i], wide[i], bytes[i]);
            status = rk_operands_write(&result->operands, i, bytes[i], error);
        }
        free(wide[i]);
        free(bytes[i]);
    }
    return status;
}

enum rk_status rk_oracle_run(const struct rk_backend *backend, struct rk_device *device,
                             const struct rk_op_case *op_case, enum rk_data_type type, uint64_t seed,
                             struct rk_oracle_result *result, struct rk_error *error) {
    memset(result, 0, sizeof *result);
    result->shape = op_case->shape;
    result->shape.type = type;
    enum rk_status status = rk_operands_make(backend, device, &result->shape, op_case->group_rank,
                                             RK_DISTRIBUTION_NORMAL, seed, &result->operands, error);
    if (status != RK_OK) {
        return status;
    }
    struct rk_operands *operands = &result->operands;
    status = apply_case(op_case, operands, error);
    for (int i = 0; i < RK_OP_OPERANDS; i++) {
        result->elements[i] = operands->bytes[i] / rk_element_bytes(rk_op_operand_element(&result->shape, i));
        result->valid[i] = valid_elements(result, i);
    }
    if (status == RK_OK) {
        status = prepare(result, error);
    }
    if (status == RK_OK) {
        status = read_all(result, result->bytes_before, error);
    }
    void *own_memory = operands->memory[op_case->output];
    if (op_case->output != 0) {
        operands->call.operand[op_case->output] = operands->memory[op_case->in_place_of];
    }
    if (status == RK_OK) {
        status = rk_kernel_run(backend, operands->stream, &operands->call, error);
    }
    if (op_case->output != 0) {
        operands->memory[op_case->output] = operands->memory[op_case->in_place_of];
    }
    if (status == RK_OK) {
        status = read_all(result, result->bytes_after, error);
    }
    operands->memory[op_case->output] = own_memory;
    widen_all(result, result->bytes_before, result->before);
    widen_all(result, result->bytes_after, result->after);
    rk_operands_free(operands);
    if (status != RK_OK) {
        rk_oracle_result_free(result);
        return rk_fail_context(error, "%s", op_case->name);
    }
    return RK_OK;
}

void rk_oracle_result_free(struct rk_oracle_result *result) {
    for (int i = 0; i < RK_OP_OPERANDS; i++) {
        free(result->before[i]);
        free(result->after[i]);
        free(result->bytes_before[i]);
        free(result->bytes_after[i]);
        result->before[i] = result->after[i] = NULL;
        result->bytes_before[i] = result->bytes_after[i] = NULL;
    }
}

enum rk_status rk_oracle_check_untouched(const struct rk_op_case *op_case, const struct rk_oracle_result *result,
                                         struct rk_error *error) {
    for (int i = 0; i < rk_op_operand_count(result->shape.kind); i++) {
        if (result->bytes_after[i] == NULL) {
            continue;
        }
        bool in_place = op_case->output != 0 && (i == op_case->in_place_of || i == op_case->output);
        bool read_only = rk_op_operand_access(result->shape.kind, i) == RK_ACCESS_READ && !in_place;
        int64_t size = rk_element_bytes(rk_op_operand_element(&result->shape, i));
        int64_t from = read_only ? 0 : result->valid[i] * size, bytes = result->elements[i] * size - from;
        const char *before = in_place ? result->bytes_before[op_case->in_place_of] : result->bytes_before[i];
        if (memcmp(before + from, (const char *)result->bytes_after[i] + from, (size_t)bytes) != 0) {
            return rk_fail(error, RK_ERROR, "%s: operand %d (%s) was written %s", op_case->name, i,
                           rk_op_operand_name(result->shape.kind, i),
                           read_only ? "although it is read only" : "past its valid rows");
        }
    }
    return RK_OK;
}

static double root_mean_square(const double *value, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += isfinite(value[i]) ? value[i] * value[i] : 0;
    }
    return count > 0 ? sqrt(sum / (double)count) : 0;
}

/* What the operand is stored in decides how far it may be off; integers not at all. */
static double tolerance_of(const struct rk_op_case *op_case, const struct rk_oracle_result *result, int operand) {
    switch (rk_op_operand_element(&result->shape, operand)) {
    case RK_ELEMENT_F32:
    case RK_ELEMENT_F64:
        return op_case->tolerance[RK_F32];
    case RK_ELEMENT_BF16:
        return op_case->tolerance[RK_BF16];
    default:
        return 0;
    }
}

static enum rk_status compare_element(const struct rk_op_case *op_case, const struct rk_oracle_result *actual,
                                      int operand, int64_t element, double expected, double scale, double factor,
                                      struct rk_error *error) {
    double found = actual->after[operand][element];
    double allowed = factor * tolerance_of(op_case, actual, operand) * (fabs(expected) + scale);
    bool alike = (isnan(expected) && isnan(found)) || expected == found || fabs(expected - found) <= allowed;
    if (alike) {
        return RK_OK;
    }
    return rk_fail(error, RK_ERROR, "%s, %s: operand %d (%s) at %" PRId64 " is %.9g, expected %.9g within %.3g",
                   op_case->name, rk_data_type_name(actual->shape.type), operand,
                   rk_op_operand_name(actual->shape.kind, operand), element, found, expected, allowed);
}

static bool is_output(const struct rk_oracle_result *result, int operand) {
    enum rk_access access = rk_op_operand_access(result->shape.kind, operand);
    return result->after[operand] != NULL && (access == RK_ACCESS_WRITE || access == RK_ACCESS_ACCUMULATE);
}

static enum rk_status compare_operand(const struct rk_op_case *op_case, const struct rk_oracle_result *actual,
                                      int operand, const double *expected, double factor, struct rk_error *error) {
    double scale = root_mean_square(expected, actual->valid[operand]);
    for (int64_t i = 0; i < actual->valid[operand]; i++) {
        enum rk_status status = compare_element(op_case, actual, operand, i, expected[i], scale, factor, error);
        if (status != RK_OK) {
            return status;
        }
    }
    return RK_OK;
}

enum rk_status rk_oracle_compare(const struct rk_op_case *op_case, const struct rk_oracle_result *expected,
                                 const struct rk_oracle_result *actual, double factor, struct rk_error *error) {
    for (int i = 0; i < rk_op_operand_count(actual->shape.kind); i++) {
        if (is_output(actual, i)) {
            enum rk_status status = compare_operand(op_case, actual, i, expected->after[i], factor, error);
            if (status != RK_OK) {
                return status;
            }
        }
    }
    return RK_OK;
}

static enum rk_status compare_forward(const struct rk_op_case *op_case, const struct rk_oracle_result *actual,
                                      struct rk_error *error) {
    double *copy[RK_OP_OPERANDS] = {NULL};
    for (int i = 0; i < RK_OP_OPERANDS; i++) {
        if (actual->before[i] != NULL) {
            size_t bytes = (size_t)actual->elements[i] * sizeof(double);
            copy[i] = malloc(bytes + 1);
            memcpy(copy[i], actual->before[i], bytes);
        }
    }
    struct rk_reference reference = reference_of(actual, copy);
    rk_reference_run(&reference);
    enum rk_status status = RK_OK;
    for (int i = 0; i < RK_OP_OPERANDS; i++) {
        if (status == RK_OK && is_output(actual, i)) {
            status = compare_operand(op_case, actual, i, copy[i], 1, error);
        }
        free(copy[i]);
    }
    return status;
}

/* All elements when there are no more than samples; else in turn from the end, from the beginning, and two anywhere:
 * the last blocks of rows and columns are where a kernel goes wrong. */
static int64_t sample_element(int64_t sample, int64_t count, int64_t samples, uint64_t seed) {
    if (count <= samples) {
        return sample;
    }
    switch (sample % 4) {
    case 0:
        return count - 1 - sample / 4;
    case 1:
        return sample / 4;
    default:
        return (int64_t)rk_random_below(seed, (uint64_t)sample, (uint64_t)count);
    }
}

static enum rk_status compare_gradient(const struct rk_op_case *op_case, const struct rk_oracle_result *actual,
                                       int operand, int64_t samples, uint64_t seed, struct rk_error *error) {
    struct rk_reference reference = reference_of(actual, actual->before);
    int64_t count = actual->valid[operand];
    bool accumulated = rk_op_operand_access(actual->shape.kind, operand) == RK_ACCESS_ACCUMULATE &&
                       actual->shape.kind != RK_OP_CROSS_ENTROPY;
    double scale = root_mean_square(actual->after[operand], count);
    for (int64_t i = 0; i < count; i++) { /* all of them, because only samples are compared */
        if (!isfinite(actual->after[operand][i])) {
            return rk_fail(error, RK_ERROR, "%s: operand %d (%s) at %" PRId64 " is not finite", op_case->name, operand,
                           rk_op_operand_name(actual->shape.kind, operand), i);
        }
    }
    for (int64_t sample = 0; sample < (count < samples ? count : samples); sample++) {
        int64_t element = sample_element(sample, count, samples, seed);
        double expected = rk_reference_gradient(&reference, operand, element);
        expected += accumulated ? actual->before[operand][element] : 0;
        enum rk_status status = compare_element(op_case, actual, operand, element, expected, scale, 1, error);
        if (status != RK_OK) {
            return status;
        }
    }
    return RK_OK;
}

enum rk_status rk_oracle_compare_reference(const struct rk_op_case *op_case, const struct rk_oracle_result *actual,
                                           int64_t samples, uint64_t seed, struct rk_error *error) {
    if (rk_reference_is_forward(actual->shape.kind)) {
        return compare_forward(op_case, actual, error);
    }
    for (int i = 0; i < rk_op_operand_count(actual->shape.kind); i++) {
        if (is_output(actual, i) && rk_reference_is_gradient(actual->shape.kind, i)) {
            enum rk_status status = compare_gradient(op_case, actual, i, samples, seed, error);
            if (status != RK_OK) {
                return status;
            }
        }
    }
    return RK_OK;
}

bool rk_oracle_same_bytes(const struct rk_oracle_result *left, const struct rk_oracle_result *right) {
    for (int i = 0; i < rk_op_operand_count(left->shape.kind); i++) {
        size_t bytes = (size_t)(left->valid[i] * rk_element_bytes(rk_op_operand_element(&left->shape, i)));
        if (is_output(left, i) && memcmp(left->bytes_after[i], right->bytes_after[i], bytes) != 0) {
            return false;
        }
    }
    return true;
}
