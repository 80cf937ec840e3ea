/* The order of chunk visits: published vectors of live chunks, and what every order must keep. */
#include "model/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VISITS_MAX = 2 * 8 * 64 };

static int64_t make(int32_t pipeline, int32_t virtual_stages, int64_t micro_batches, int32_t stage,
                    struct rk_chunk_visit *visits) {
    struct rk_error error;
    assert_int_equal(rk_schedule_order(pipeline, virtual_stages, micro_batches, stage, visits, &error), RK_OK);
    return 2 * virtual_stages * micro_batches;
}

/* Highest live chunks of every stage, stage 0 first. */
static void live_chunks_match_published_vectors(void **state) {
    static const struct {
        int32_t pipeline, virtual_stages;
        int64_t micro_batches;
        int32_t live[8];
    } vectors[] = {
        {4, 1, 8, {4, 3, 2, 1}},
        {4, 1, 2, {2, 2, 2, 1}},
        {4, 1, 3, {3, 3, 2, 1}},
        {4, 2, 8, {11, 9, 7, 5}},
        {4, 2, 4, {8, 8, 7, 5}},
        {8, 2, 16, {23, 21, 19, 17, 15, 13, 11, 9}},
        {8, 4, 16, {39, 37, 35, 33, 31, 29, 27, 25}},
        {8, 3, 64, {31, 29, 27, 25, 23, 21, 19, 17}},
        {2, 4, 8, {9, 7}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        for (int32_t stage = 0; stage < vectors[i].pipeline; stage++) {
            struct rk_chunk_visit visits[VISITS_MAX];
            int64_t count =
                make(vectors[i].pipeline, vectors[i].virtual_stages, vectors[i].micro_batches, stage, visits);
            assert_int_equal(rk_schedule_live_all(visits, count), vectors[i].live[stage]);
        }
    }
}

/* Every chunk of every micro-batch goes forward once and then backward once, micro-batches in order in each chunk. */
static void every_visit_occurs_once_and_in_order(void **state) {
    static const int32_t shapes[][3] = {{1, 1, 1}, {1, 1, 7}, {2, 1, 1}, {3, 1, 5}, {4, 2, 8}, {2, 4, 6}, {8, 1, 3}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int32_t stage = 0; stage < shapes[i][0]; stage++) {
            struct rk_chunk_visit visits[VISITS_MAX];
            int32_t next[2][8] = {{0}};
            int64_t count = make(shapes[i][0], shapes[i][1], shapes[i][2], stage, visits);
            for (int64_t k = 0; k < count; k++) {
                int32_t v = visits[k].virtual_stage;
                assert_in_range(v, 0, shapes[i][1] - 1);
                assert_int_equal(visits[k].micro_batch, next[visits[k].backward][v]);
                next[visits[k].backward][v]++;
                assert_true(next[1][v] <= next[0][v]);
            }
            for (int32_t v = 0; v < shapes[i][1]; v++) {
                assert_int_equal(next[0][v], shapes[i][2]);
                assert_int_equal(next[1][v], shapes[i][2]);
            }
        }
    }
}

/* A chunk's forward needs the chunk before it, its backward the chunk behind it: played round by round, all stages end.
 */
static void all_stages_finish_together(void **state) {
    static const int32_t shapes[][3] = {{4, 1, 8}, {4, 1, 2}, {4, 2, 8}, {4, 2, 4}, {8, 3, 64}, {2, 4, 8}, {5, 2, 5}};
    static struct rk_chunk_visit visits[8][VISITS_MAX];
    static bool done[2][8 * 8][64];
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        int32_t pipeline = shapes[i][0], chunks = pipeline * shapes[i][1];
        int64_t position[8] = {0}, count = 0, moved = 1, total = 0;
        memset(done, 0, sizeof done);
        for (int32_t stage = 0; stage < pipeline; stage++)
            count = make(pipeline, shapes[i][1], shapes[i][2], stage, visits[stage]);
        while (moved > 0) {
            moved = 0;
            for (int32_t stage = 0; stage < pipeline; stage++) {
                if (position[stage] == count)
                    continue;
                const struct rk_chunk_visit *visit = &visits[stage][position[stage]];
                int32_t chunk = visit->virtual_stage * pipeline + stage, micro = visit->micro_batch;
                bool ready = visit->backward ? (chunk == chunks - 1 ? done[0][chunk][micro] : done[1][chunk + 1][micro])
                                             : chunk == 0 || done[0][chunk - 1][micro];
                if (!ready)
                    continue;
                done[visit->backward][chunk][micro] = true;
                position[stage]++;
                moved++;
            }
            total += moved;
        }
        assert_int_equal(total, count * pipeline);
    }
}

static void virtual_stages_need_whole_groups(void **state) {
    struct rk_chunk_visit visits[VISITS_MAX];
    struct rk_error error = {.text = ""};
    (void)state;
    assert_int_equal(rk_schedule_order(4, 2, 6, 0, visits, &error), RK_USAGE);
    assert_non_null(strstr(error.text, "multiple of PP"));
}

static void live_chunks_of_a_virtual_stage(void **state) {
    struct rk_chunk_visit visits[VISITS_MAX];
    int64_t count = make(4, 2, 8, 3, visits);
    (void)state;
    assert_int_equal(rk_schedule_live(visits, count, 0), 5);
    assert_int_equal(rk_schedule_live(visits, count, 1), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(live_chunks_match_published_vectors), cmocka_unit_test(every_visit_occurs_once_and_in_order),
        cmocka_unit_test(all_stages_finish_together),          cmocka_unit_test(virtual_stages_need_whole_groups),
        cmocka_unit_test(live_chunks_of_a_virtual_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
