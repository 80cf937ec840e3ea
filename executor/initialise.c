#include "executor/initialise.h"

#include "base/random.h"
#include "executor/tensor_file.h"
#include "kernels/bf16.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* Large enough that starting threads and copying cost little beside drawing; small models touch only their part. */
enum { CHUNK = 1 << 24 };

struct chunk {
    float values[CHUNK];
    uint16_t rounded[CHUNK];
};

static enum rk_status write_weights(struct rk_trainer *trainer, const struct rk_tensor *tensor, int64_t first,
                                    int64_t count, struct chunk *chunk, struct rk_error *error) {
    const struct rk_program *program = rk_trainer_program(trainer);
    bool wide = program->type == RK_F32 || !tensor->trained;
    int64_t width = wide ? (int64_t)sizeof(float) : (int64_t)sizeof(uint16_t);
    for (int64_t i = 0; !wide && i < count; i++)
        chunk->rounded[i] = rk_bf16_round(chunk->values[i]);
    return rk_trainer_write(trainer, tensor->buffer, tensor->instance, first * width,
                            wide ? (const void *)chunk->values : chunk->rounded, count * width, error);
}

static int64_t part_of(int64_t left) {
    return left < CHUNK ? left : CHUNK;
}

static enum rk_status load_tensor(struct rk_trainer *trainer, const struct rk_tensor_source *source,
                                  const struct rk_tensor *tensor, struct chunk *chunk, struct rk_error *error) {
    const struct rk_program *program = rk_trainer_program(trainer);
    int64_t begin = rk_tensor_global_first(program, tensor, rk_trainer_job(trainer)->place.rank);
    int64_t elements = rk_tensor_local_elements(tensor);
    enum rk_status status = RK_OK;
    for (int64_t first = 0; first < elements && status == RK_OK; first += CHUNK) {
        int64_t count = part_of(elements - first);
        status = source->read(source->context, program, tensor, begin + first, count, chunk->values, error);
        if (status == RK_OK)
            status = write_weights(trainer, tensor, first, count, chunk, error);
    }
    return status;
}

static enum rk_status load_master(struct rk_trainer *trainer, const struct rk_tensor_source *source,
                                  const struct rk_shard_piece *piece, struct chunk *chunk, struct rk_error *error) {
    const struct rk_program *program = rk_trainer_program(trainer);
    const struct rk_tensor *tensor = &program->tensors[piece->tensor];
    uint32_t master = rk_tensor_space(program, tensor)->master;
    enum rk_status status = RK_OK;
    for (int64_t first = 0; first < piece->count && status == RK_OK; first += CHUNK) {
        int64_t count = part_of(piece->count - first);
        status =
            source->read(source->context, program, tensor, piece->global_first + first, count, chunk->values, error);
        if (status == RK_OK)
            status = rk_trainer_write(trainer, master, 0, (piece->shard + first) * (int64_t)sizeof(float),
                                      chunk->values, count * (int64_t)sizeof(float), error);
    }
    return status;
}

/* Padding must be zero too: it is reduced, squared and updated with the rest. */
static enum rk_status zero_space(struct rk_trainer *trainer, const struct rk_flat_space *space,
                                 struct rk_error *error) {
    if (space->elements == 0)
        return RK_OK;
    const uint32_t buffers[] = {space->weights, space->gradients, space->master, space->first_moment,
                                space->second_moment};
    enum rk_status status = RK_OK;
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0] && status == RK_OK; i++)
        status = rk_trainer_zero(trainer, buffers[i], 0, error);
    return status;
}

enum rk_status rk_load_weights(struct rk_trainer *trainer, const struct rk_tensor_source *source,
                               struct rk_error *error) {
    const struct rk_program *program = rk_trainer_program(trainer);
    const struct rk_shards *shards = rk_trainer_shards(trainer);
    struct chunk *chunk = malloc(sizeof *chunk);
    if (chunk == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the loading of weights");
    enum rk_status status = zero_space(trainer, &program->dense, error);
    if (status == RK_OK)
        status = zero_space(trainer, &program->expert, error);
    for (size_t i = 0; i < program->tensor_count && status == RK_OK; i++)
        status = load_tensor(trainer, source, &program->tensors[i], chunk, error);
    for (size_t i = 0; i < shards->count && status == RK_OK; i++)
        status = load_master(trainer, source, &shards->pieces[i], chunk, error);
    free(chunk);
    return status;
}

struct normal_source {
    uint64_t seed;
    double standard_deviation;
    int threads;
};

/* A run of values for one thread. */
struct normal_part {
    pthread_t thread;
    uint64_t stream;
    int64_t first, count;
    double standard_deviation;
    float *values;
};

static void *draw_part(void *context) {
    const struct normal_part *part = context;
    for (int64_t i = 0; i < part->count; i++)
        part->values[i] =
            (float)(part->standard_deviation * rk_random_normal(part->stream, (uint64_t)(part->first + i)));
    return NULL;
}

enum { THREADS_MAX = 64, VALUES_PER_THREAD = 1 << 14 };

/* A value depends on its place alone, so threads only save time: billions of values take minutes on one. */
static void draw(const struct normal_source *source, uint64_t stream, int64_t first, int64_t count, float *values) {
    struct normal_part parts[THREADS_MAX];
    int64_t wanted = count / VALUES_PER_THREAD;
    int threads = wanted < source->threads ? (int)wanted : source->threads, started = 1;
    threads = threads < 1 ? 1 : threads;
    for (int i = 0; i < threads; i++) {
        int64_t begin = count * i / threads, end = count * (i + 1) / threads;
        parts[i] = (struct normal_part){
            .stream = stream, .first = first + begin, .count = end - begin, .values = values + begin};
        parts[i].standard_deviation = source->standard_deviation;
    }
    while (started < threads && pthread_create(&parts[started].thread, NULL, draw_part, &parts[started]) == 0)
        started++;
    draw_part(&parts[0]);
    for (int i = started; i < threads; i++)
        draw_part(&parts[i]);
    for (int i = 1; i < started; i++)
        pthread_join(parts[i].thread, NULL);
}

/* This rank's share of the cores that it may use. */
static int own_threads(const struct rk_job *job) {
    cpu_set_t cores;
    int64_t neighbours = job->place.local_world > 0 ? job->place.local_world : 1;
    int64_t share = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) / neighbours : 1;
    return share < 1 ? 1 : share > THREADS_MAX ? THREADS_MAX : (int)share;
}

static enum rk_status read_normal(void *context, const struct rk_program *program, const struct rk_tensor *tensor,
                                  int64_t first, int64_t count, float *values, struct rk_error *error) {
    const struct normal_source *source = context;
    uint64_t stream = rk_random_stream(source->seed, tensor->name, 0);
    (void)program;
    (void)error;
    if (tensor->initial == RK_INIT_ONE || tensor->initial == RK_INIT_ZERO)
        for (int64_t i = 0; i < count; i++)
            values[i] = tensor->initial == RK_INIT_ONE ? 1.0F : 0.0F;
    else
        draw(source, stream, first, count, values);
    return RK_OK;
}

enum rk_status rk_initialise(struct rk_trainer *trainer, uint64_t seed, double standard_deviation,
                             struct rk_error *error) {
    struct normal_source context = {seed, standard_deviation, own_threads(rk_trainer_job(trainer))};
    struct rk_tensor_source source = {read_normal, &context};
    return rk_load_weights(trainer, &source, error);
}

static enum rk_status read_from_file(void *context, const struct rk_program *program, const struct rk_tensor *tensor,
                                     int64_t first, int64_t count, float *values, struct rk_error *error) {
    const struct rk_tensor_file *file = context;
    const struct rk_tensor_entry *entry = NULL;
    int64_t shape[3];
    struct rk_error missing;
    rk_tensor_global_shape(program, tensor, shape);
    enum rk_status status =
        rk_tensor_file_find(file, tensor->name, tensor->rank, shape, &entry, tensor->trained ? error : &missing);
    if (status == RK_OK)
        return rk_tensor_file_read(file, entry, first, count, values, error);
    if (tensor->trained)
        return status;
    memset(values, 0, (size_t)count * sizeof *values);
    return RK_OK;
}

enum rk_status rk_initialise_from_file(struct rk_trainer *trainer, const char *path, struct rk_error *error) {
    struct rk_tensor_file file;
    enum rk_status status = rk_tensor_file_open(path, &file, error);
    if (status != RK_OK)
        return status;
    struct rk_tensor_source source = {read_from_file, &file};
    status = rk_load_weights(trainer, &source, error);
    rk_tensor_file_close(&file);
    return status;
}
