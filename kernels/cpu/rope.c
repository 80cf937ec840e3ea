/* Rotation of queries and keys, with or without their RMSNorm. Head by head; widths up to HEAD_MAX. */
#include "kernels/cpu/cpu.h"

#include <inttypes.h>
#include <math.h>

enum { HEAD_MAX = 1024 };

/* One of the two rotated parts of a token's row. */
struct part {
    int64_t first; /* values before it in the row */
    int64_t heads;
    const void *gain; /* act, or NULL */
    double *dgain;    /* sums of the gain's gradient, or NULL */
};

/* What a call asks for, and the angles of one position. */
struct rotation {
    enum rk_data_type type;
    int64_t tokens, sequence, row; /* row: values of a token */
    int64_t head, half;            /* values of a head, and half of them */
    bool per_head, full;
    double epsilon;
    struct part part[2];
    int64_t rotated; /* values of q and k together; v follows */
    double frequency[HEAD_MAX / 2];
    float cosine[HEAD_MAX / 2], sine[HEAD_MAX / 2];
};

static void rotation_open(struct rotation *rotation, const struct rk_op_call *call, int first_gain) {
    const int64_t *dim = call->shape->dim;
    rotation->type = call->shape->type;
    rotation->tokens = dim[0];
    rotation->sequence = dim[1];
    rotation->half = dim[4] / 2;
    rotation->head = dim[4];
    rotation->row = (dim[2] + 2 * dim[3]) * dim[4];
    rotation->rotated = (dim[2] + dim[3]) * dim[4];
    rotation->per_head = (call->shape->flags & RK_OP_FLAG_QK_NORM_HEAD) != 0;
    rotation->full = (call->shape->flags & RK_OP_FLAG_QK_NORM_FULL) != 0;
    rotation->epsilon = (double)call->parameter[1];
    rotation->part[0] = (struct part){0, dim[2], call->operand[first_gain], NULL};
    rotation->part[1] = (struct part){dim[2] * dim[4], dim[3], call->operand[first_gain + 1], NULL};
    for (int64_t i = 0; i < rotation->half; i++) {
        rotation->frequency[i] = pow((double)call->parameter[0], -2.0 * (double)i / (double)rotation->head);
    }
}

static enum rk_status check_head(const struct rk_op_call *call, struct rk_error *error) {
    int64_t head = call->shape->dim[4];
    if (head < 2 || head > HEAD_MAX || head % 2 != 0) {
        return rk_fail(error, RK_USAGE, "%s: a head of %" PRId64 " values; the rotation takes even widths up to %d",
                       rk_op_name(call->shape->kind), head, HEAD_MAX);
    }
    return RK_OK;
}

/* Angles in FP64, so that long positions lose nothing; their cosines are FP32. */
static void set_position(struct rotation *rotation, int64_t position) {
    for (int64_t i = 0; i < rotation->half; i++) {
        double angle = (double)position * rotation->frequency[i];
        rotation->cosine[i] = (float)cos(angle);
        rotation->sine[i] = (float)sin(angle);
    }
}

/* 1/sqrt(mean square + epsilon) over count values. */
static RK_CPU_CLONES float reciprocal_norm(const struct rotation *rotation, const void *qkv, int64_t first,
                                           int64_t count) {
    float buffer[RK_CPU_CHUNK];
    double sum = 0;
    for (int64_t done = 0; done < count; done += RK_CPU_CHUNK) {
        int64_t some = rk_cpu_smaller(count - done, RK_CPU_CHUNK);
        const float *x = rk_cpu_load(rotation->type, qkv, first + done, some, buffer);
        sum += rk_cpu_dot(x, x, some);
    }
    return (float)(1.0 / sqrt(sum / (double)count + rotation->epsilon));
}

/* direction 1 rotates, -1 rotates back (the transpose). */
static void rotate(const struct rotation *rotation, const float *x, float direction, float *restrict out) {
    int64_t half = rotation->half;
    for (int64_t i = 0; i < half; i++) {
        float sine = direction * rotation->sine[i];
        out[i] = x[i] * rotation->cosine[i] - x[i + half] * sine;
        out[i + half] = x[i + half] * rotation->cosine[i] + x[i] * sine;
    }
}

static RK_CPU_CLONES void forward_part(const struct rotation *rotation, const struct part *part, const void *qkv,
                                       int64_t row, void *out) {
    float x_buffer[HEAD_MAX], gain_buffer[HEAD_MAX], normalised[HEAD_MAX], rotated[HEAD_MAX];
    int64_t width = rotation->head, start = row + part->first;
    float rstd = rotation->full ? reciprocal_norm(rotation, qkv, start, part->heads * width) : 1.0f;
    for (int64_t head = 0; head < part->heads; head++) {
        int64_t at = start + head * width;
        const float *x = rk_cpu_load(rotation->type, qkv, at, width, x_buffer);
        if (rotation->per_head || rotation->full) {
            rstd = rotation->per_head ? reciprocal_norm(rotation, qkv, at, width) : rstd;
            int64_t gain_at = rotation->full ? head * width : 0;
            const float *gain = rk_cpu_load(rotation->type, part->gain, gain_at, width, gain_buffer);
            for (int64_t i = 0; i < width; i++) {
                normalised[i] = x[i] * rstd * gain[i];
            }
            x = normalised;
        }
        rotate(rotation, x, 1.0f, rotated);
        rk_cpu_store(rotation->type, out, at, width, rotated);
    }
}

static void copy_values(const struct rotation *rotation, const void *from, int64_t row, void *to) {
    int64_t at = row + rotation->rotated;
    const void *source = rk_cpu_at(rotation->type, from, at);
    void *target = rk_cpu_at(rotation->type, to, at);
    if (source != target) {
        memcpy(target, source, (size_t)((rotation->row - rotation->rotated) * rk_data_type_bytes(rotation->type)));
    }
}

enum rk_status rk_cpu_ROPE_FORWARD(struct rk_stream *stream, const struct rk_op_call *call, struct rk_error *error) {
    struct rotation rotation;
    enum rk_status status = check_head(call, error);
    if (status != RK_OK) {
        return status;
    }
    stream->device->counters.launches++;
    rotation_open(&rotation, call, 1);
    for (int64_t position = 0; position < rk_cpu_smaller(rotation.sequence, rotation.tokens); position++) {
        set_position(&rotation, position);
        for (int64_t t = position; t < rotation.tokens; t += rotation.sequence) {
            int64_t row = t * rotation.row;
            forward_part(&rotation, &rotation.part[0], call->operand[0], row, call->operand[3]);
            forward_part(&rotation, &rotation.part[1], call->operand[0], row, call->operand[3]);
            copy_values(&rotation, call->operand[0], row, call->operand[3]);
        }
    }
    return RK_OK;
}

/* The gradient by the normalised and scaled value of one head: the upper gradient rotated back. */
static void upper_gradient(const struct rotation *rotation, const void *dout, int64_t at, float *out) {
    float buffer[HEAD_MAX];
    const float *gradient = rk_cpu_load(rotation->type, dout, at, rotation->head, buffer);
    rotate(rotation, gradient, -1.0f, out);
}

/* Σ over one head of upper gradient · gain · x. Adds upper gradient · x · rstd to the gain's gradient. */
static RK_CPU_CLONES double head_projection(const struct rotation *rotation, const struct part *part, const void *dout,
                                            const void *qkv, int64_t at, int64_t head, float rstd) {
    float upper[HEAD_MAX], x_buffer[HEAD_MAX], gain_buffer[HEAD_MAX], scaled[HEAD_MAX];
    int64_t width = rotation->head, gain_at = rotation->full ? head * width : 0;
    upper_gradient(rotation, dout, at, upper);
    const float *x = rk_cpu_load(rotation->type, qkv, at, width, x_buffer);
    const float *gain = rk_cpu_load(rotation->type, part->gain, gain_at, width, gain_buffer);
    double *dgain = part->dgain + gain_at;
    for (int64_t i = 0; i < width; i++) {
        scaled[i] = upper[i] * gain[i];
        dgain[i] += (double)(upper[i] * (x[i] * rstd));
    }
    return rk_cpu_dot(scaled, x, width);
}

static RK_CPU_CLONES void write_head_gradient(const struct rotation *rotation, const struct part *part,
                                              const void *dout, const void *qkv, int64_t at, int64_t head, float rstd,
                                              float mean, void *dqkv) {
    float upper[HEAD_MAX], x_buffer[HEAD_MAX], gain_buffer[HEAD_MAX], out[HEAD_MAX];
    int64_t width = rotation->head, gain_at = rotation->full ? head * width : 0;
    upper_gradient(rotation, dout, at, upper);
    const float *x = rk_cpu_load(rotation->type, qkv, at, width, x_buffer);
    const float *gain = rk_cpu_load(rotation->type, part->gain, gain_at, width, gain_buffer);
    for (int64_t i = 0; i < width; i++) {
        out[i] = rstd * (upper[i] * gain[i] - x[i] * rstd * mean);
    }
    rk_cpu_store(rotation->type, dqkv, at, width, out);
}

/* Through the RMSNorm: as RMSNORM_BACKWARD, over a head or over all heads of the part. The means come first, because
 * dqkv may be dout itself. */
static RK_CPU_CLONES void backward_normalised(const struct rotation *rotation, const struct part *part,
                                              const void *dout, const void *qkv, int64_t row, void *dqkv) {
    int64_t width = rotation->head, start = row + part->first;
    int64_t heads_together = rotation->full ? part->heads : 1;
    for (int64_t first = 0; first < part->heads; first += heads_together) {
        int64_t values = heads_together * width;
        float rstd = reciprocal_norm(rotation, qkv, start + first * width, values);
        double sum = 0;
        for (int64_t head = first; head < first + heads_together; head++) {
            sum += head_projection(rotation, part, dout, qkv, start + head * width, head, rstd);
        }
        float mean = (float)(sum * (double)rstd / (double)values);
        for (int64_t head = first; head < first + heads_together; head++) {
            write_head_gradient(rotation, part, dout, qkv, start + head * width, head, rstd, mean, dqkv);
        }
    }
}

static RK_CPU_CLONES void backward_plain(const struct rotation *rotation, const struct part *part, const void *dout,
                                         int64_t row, void *dqkv) {
    float upper[HEAD_MAX];
    for (int64_t head = 0; head < part->heads; head++) {
        int64_t at = row + part->first + head * rotation->head;
        upper_gradient(rotation, dout, at, upper);
        rk_cpu_store(rotation->type, dqkv, at, rotation->head, upper);
    }
}

static void add_gain_gradient(const double *sum, int64_t count, float *gradient) {
    for (int64_t i = 0; i < count; i++) {
        gradient[i] += (float)sum[i];
    }
}

enum rk_status rk_cpu_ROPE_BACKWARD(struct rk_stream *stream, const struct rk_op_call *call, struct rk_error *error) {
    struct rotation rotation;
    enum rk_status status = check_head(call, error);
    if (status != RK_OK) {
        return status;
    }
    stream->device->counters.launches++;
    rotation_open(&rotation, call, 2);
    bool normalises = rotation.per_head || rotation.full;
    int64_t q_gains = rk_op_operand_bytes(call->shape, 5) / (int64_t)sizeof(float);
    int64_t k_gains = rk_op_operand_bytes(call->shape, 6) / (int64_t)sizeof(float);
    if (normalises) {
        rotation.part[0].dgain = call->operand[7];
        rotation.part[1].dgain = rotation.part[0].dgain + q_gains;
        memset(call->operand[7], 0, (size_t)(q_gains + k_gains) * sizeof(double));
    }
    for (int64_t position = 0; position < rk_cpu_smaller(rotation.sequence, rotation.tokens); position++) {
        set_position(&rotation, position);
        for (int64_t t = position; t < rotation.tokens; t += rotation.sequence) {
            int64_t row = t * rotation.row;
            for (int i = 0; i < 2; i++) {
                if (normalises) {
                    backward_normalised(&rotation, &rotation.part[i], call->operand[0], call->operand[1], row,
                                        call->operand[4]);
                } else {
                    backward_plain(&rotation, &rotation.part[i], call->operand[0], row, call->operand[4]);
                }
            }
            copy_values(&rotation, call->operand[0], row, call->operand[4]);
        }
    }
    if (normalises) {
        add_gain_gradient(rotation.part[0].dgain, q_gains, call->operand[5]);
        add_gain_gradient(rotation.part[1].dgain, k_gains, call->operand[6]);
    }
    return RK_OK;
}
