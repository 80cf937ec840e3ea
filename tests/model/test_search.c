#include "model/cost_hardware.h"
#include "model/search_internal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* A search with everything it needs; the profile prices it. */
struct setting {
    struct rk_architecture architecture;
    struct rk_hardware hardware;
    struct rk_machine machine;
    struct rk_cost_hardware *profile;
    struct rk_cost_source costs;
    struct rk_search_request request;
};

static void setting_open(struct setting *setting, const char *model, const char *hardware, int64_t world,
                         int64_t sequence, int64_t batch) {
    struct rk_error error = {0};
    char path[256];
    snprintf(path, sizeof path, "examples/models/%s.json", model);
    if (rk_architecture_read_file(path, &setting->architecture, NULL, &error) != RK_OK)
        fail_msg("%s", error.text);
    snprintf(path, sizeof path, "hardware/%s.json", hardware);
    if (rk_hardware_read_file(path, &setting->hardware, &error) != RK_OK ||
        rk_hardware_machine(&setting->hardware, &setting->machine, &error) != RK_OK ||
        rk_cost_hardware_make(&setting->hardware, &setting->architecture, sequence, &setting->profile, &error) != RK_OK)
        fail_msg("%s", error.text);
    setting->costs = rk_cost_hardware_source(setting->profile);
    setting->request = (struct rk_search_request){.architecture = &setting->architecture,
                                                  .machine = &setting->machine,
                                                  .costs = &setting->costs,
                                                  .world = world,
                                                  .sequence = sequence,
                                                  .global_batch_tokens = batch,
                                                  .type = RK_BF16,
                                                  .offload_percent = -1,
                                                  .recompute = -1};
}

static void setting_close(struct setting *setting) {
    rk_cost_hardware_free(setting->profile);
}

/* CPU ranks that share two cores, priced by the same profile: what matters here is how the search treats such a
 * machine. */
static void become_cpu(struct setting *setting) {
    setting->machine.backend = RK_BACKEND_CPU;
    setting->machine.devices_per_host = 2;
    setting->machine.shared_devices = setting->machine.serial_streams = true;
}

static struct rk_search_result search(const struct setting *setting, enum rk_status expected) {
    struct rk_search_result result = {0};
    struct rk_error error = {0};
    enum rk_status status = rk_search(&setting->request, &result, &error);
    if (status != expected)
        fail_msg("status %d: %s", (int)status, error.text);
    return result;
}

static void next_index(const struct rk_search_space *space, struct rk_search_index *index) {
    if (++index->offload < space->offload_count)
        return;
    index->offload = 0;
    if (++index->recompute < space->recompute_count)
        return;
    index->recompute = 0;
    if (++index->micro_batch < space->micro_batch_count)
        return;
    index->micro_batch = 0;
    if (++index->expert < space->expert_count)
        return;
    index->expert = 0;
    if (++index->virtual_stages < space->virtual_count)
        return;
    index->virtual_stages = 0;
    index->pipeline++;
}

/* Judges every candidate and compares the bytes of the closed form with the layouts of the real programs. */
static size_t compare_bytes(struct setting *setting, size_t every) {
    struct rk_searching searching;
    struct rk_error error = {0};
    setting->request.memory_limit_bytes =
        INT64_MAX / 4; /* no verdict comes from a layout because it is near the limit */
    assert_int_equal(rk_searching_open(&setting->request, &searching, &error), RK_OK);
    size_t compared = 0, number = 0;
    for (struct rk_search_index index = {0}; index.pipeline < searching.space.pipeline_count;
         next_index(&searching.space, &index)) {
        struct rk_verdict closed, exact;
        if (rk_search_judge(&searching, &index, &closed, NULL) != RK_OK)
            fail_msg("%s", error.text);
        if (closed.absent || closed.bytes[1] == 0 || number++ % every != 0)
            continue;
        assert_false(closed.exact);
        exact = closed;
        if (rk_search_replay(&searching, false, &exact, NULL) != RK_OK)
            fail_msg("%s", error.text);
        struct rk_candidate candidate;
        rk_search_verdict_candidate(&searching, &closed, &candidate);
        if (closed.bytes[1] != exact.bytes[1] || closed.bytes[0] != exact.bytes[0] ||
            closed.host_bytes != exact.host_bytes)
            fail_msg(
                "PP %d, %d virtual, EP %d, T %lld, recompute %s, offload %d %%: closed form %lld + %lld host (%lld "
                "persistent, stage %d), layout %lld + %lld (%lld, stage %d)",
                candidate.pipeline, candidate.virtual_stages, candidate.expert_parallel,
                (long long)candidate.micro_batch_tokens, rk_recompute_name(candidate.recompute),
                candidate.offload_percent, (long long)closed.bytes[1], (long long)closed.host_bytes,
                (long long)closed.bytes[0], closed.heaviest_stage, (long long)exact.bytes[1],
                (long long)exact.host_bytes, (long long)exact.bytes[0], exact.heaviest_stage);
        compared++;
    }
    rk_searching_close(&searching);
    return compared;
}

static void test_bytes_equal_layout(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int64_t world, sequence, batch;
        double capacity;
        bool cpu;
        size_t every;
    } cases[] = {
        {"olmoe-cpu-tiny", 4, 128, 16384, 0, true, 3},
        {"olmoe-cpu-tiny", 8, 64, 16384, 1.25, false, 5},
        {"glm4-moe-cpu-tiny", 4, 128, 16384, 0, true, 4},
        {"glm4-moe-cpu-tiny", 12, 128, 73728, 1.5, false, 7},
        {"report-8l-n32", 8, 8192, 1048576, 1.25, false, 7},
        {"report-medium-64e", 64, 8192, 8388608, 1.1875, false, 61},
        {"report-ultra-128e", 512, 8192, 67108864, 0, false, 203},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct setting setting;
        setting_open(&setting, cases[i].model, "b300", cases[i].world, cases[i].sequence, cases[i].batch);
        setting.request.capacity_factor = cases[i].capacity;
        if (cases[i].cpu)
            become_cpu(&setting);
        size_t compared = compare_bytes(&setting, cases[i].every);
        print_message("%s on %lld ranks: %zu candidates\n", cases[i].model, (long long)cases[i].world, compared);
        assert_true(compared > 15);
        setting_close(&setting);
    }
}

/* A limit of exactly the bytes needed is enough; one byte less is not, and the refusal says so. */
static void test_limit_is_exact(void **state) {
    (void)state;
    struct setting setting;
    setting_open(&setting, "olmoe-cpu-tiny", "b300", 4, 128, 16384);
    become_cpu(&setting);
    setting.request.pipeline = 2;
    setting.request.expert_parallel = 2;
    setting.request.virtual_stages = 1;
    setting.request.micro_batch_tokens = 256;
    setting.request.recompute = RK_RECOMPUTE_NONE;
    setting.request.offload_percent = 0;
    struct rk_search_result result = search(&setting, RK_OK);
    assert_int_equal(result.count, 1);
    int64_t bytes = result.judgements[0].arena_bytes[1];
    rk_search_result_free(&result);
    setting.request.memory_limit_bytes = bytes;
    result = search(&setting, RK_OK);
    rk_search_result_free(&result);
    setting.request.memory_limit_bytes = bytes - 1;
    result = search(&setting, RK_INFEASIBLE);
    assert_int_equal(result.judgements[0].refusal, RK_REFUSAL_MEMORY);
    assert_true(fabs(result.judgements[0].need * 1073741824.0 - (double)bytes) < 1);
    assert_true(fabs(result.judgements[0].have * 1073741824.0 - (double)(bytes - 1)) < 1);
    rk_search_result_free(&result);
    setting_close(&setting);
}

/* The report's block: 3.959 GB in 10.3 ms and back in 22 ms, against 63 by specification and 53 measured. */
static void test_report_offload(void **state) {
    (void)state;
    struct setting setting;
    setting_open(&setting, "report-8l-n32", "b300", 4, 8192, 524288);
    setting.request.pipeline = 1;
    setting.request.expert_parallel = 4;
    setting.request.micro_batch_tokens = 16384;
    setting.request.recompute = RK_RECOMPUTE_NONE;
    struct rk_search_result result = search(&setting, RK_OK);
    bool full = false, part = false;
    for (size_t i = 0; i < result.kept; i++) {
        const struct rk_judgement *judgement = &result.judgements[i];
        if (judgement->candidate.offload_percent == 100) {
            assert_int_equal(judgement->refusal, RK_REFUSAL_OFFLOAD_D2H);
            assert_true(fabs(judgement->need - 384) < 0.5);
            assert_true(fabs(judgement->offload_need[0] - 384) < 0.5);
            assert_true(fabs(judgement->offload_need[1] - 180) < 0.5);
            assert_true(fabs(judgement->have - 53) < 1e-9);
            assert_string_equal(judgement->remedy, "offload at most 13.8 %");
            full = true;
        }
        part = part || (judgement->candidate.offload_percent == 13 && judgement->refusal == RK_REFUSAL_NONE);
    }
    assert_true(full && part);
    assert_true(setting.machine.d2h_specification.value > 62.9e9 && setting.machine.d2h_specification.value < 63.1e9);
    rk_search_result_free(&result);
    setting_close(&setting);
}

/* Ultra on 512: fits with recompute, not without, and the search is quick. */
static void test_ultra(void **state) {
    (void)state;
    struct setting setting;
    setting_open(&setting, "report-ultra-128e", "b300", 512, 8192, 67108864);
    clock_t before = clock();
    struct rk_search_result result = search(&setting, RK_OK);
    double seconds = (double)(clock() - before) / CLOCKS_PER_SEC;
    print_message("%zu candidates in %.2f s of processor time\n", result.count, seconds);
#if !defined(RK_SANITIZED)
    assert_true(seconds < 2);
#endif
    assert_true(result.judgements[0].simulated);
    assert_int_equal(result.judgements[0].candidate.recompute, RK_RECOMPUTE_BLOCK);
    size_t without = 0;
    for (size_t i = 0; i < result.kept; i++) {
        const struct rk_judgement *judgement = &result.judgements[i];
        if (judgement->candidate.recompute != RK_RECOMPUTE_NONE || judgement->candidate.offload_percent != 0 ||
            judgement->candidate.pipeline != 8 || judgement->candidate.expert_parallel != 8)
            continue;
        without++;
        assert_true(judgement->refusal == RK_REFUSAL_MEMORY || judgement->refusal == RK_REFUSAL_DIVISIBILITY);
        if (judgement->refusal == RK_REFUSAL_MEMORY) {
            assert_true(judgement->need > judgement->have);
            assert_true(strlen(judgement->remedy) > 0);
        }
    }
    assert_true(without > 0);
    rk_search_result_free(&result);
    setting_close(&setting);
}

/* Ranks of a CPU: many candidates, some refused for memory and some for the link, with need, have and a way out. */
static void test_cpu_refusals(void **state) {
    (void)state;
    struct setting setting;
    setting_open(&setting, "olmoe-cpu-tiny", "b300", 4, 128, 16384);
    become_cpu(&setting);
    struct rk_search_result result = search(&setting, RK_OK);
    assert_true(result.count >= 50);
    int64_t least = INT64_MAX, most = 0;
    for (size_t i = 0; i < result.feasible; i++) {
        int64_t bytes = result.judgements[i].arena_bytes[1];
        least = bytes < least ? bytes : least;
        most = bytes > most ? bytes : most;
    }
    rk_search_result_free(&result);
    setting.request.memory_limit_bytes = (least + most) / 2;
    setting.machine.d2h.value = 1e9;
    result = search(&setting, RK_OK);
    assert_true(result.refused[RK_REFUSAL_MEMORY] > 0);
    assert_true(result.refused[RK_REFUSAL_OFFLOAD_D2H] > 0);
    size_t counted = result.feasible;
    for (int kind = 1; kind < RK_REFUSAL_COUNT; kind++)
        counted += result.refused[kind];
    assert_int_equal(counted, result.count);
    for (size_t i = 0; i < result.kept; i++) {
        const struct rk_judgement *judgement = &result.judgements[i];
        assert_true((i < result.feasible) == (judgement->refusal == RK_REFUSAL_NONE));
        if (judgement->refusal != RK_REFUSAL_MEMORY && judgement->refusal != RK_REFUSAL_OFFLOAD_D2H)
            continue;
        assert_true(judgement->need > judgement->have && judgement->have > 0);
        assert_true(strlen(judgement->remedy) > 0);
    }
    rk_search_result_free(&result);
    setting_close(&setting);
}

/* More memory never loses a feasible candidate; a faster machine is never slower. */
static void test_more_is_never_worse(void **state) {
    (void)state;
    struct setting setting;
    setting_open(&setting, "report-8l-n32", "b300", 8, 8192, 1048576);
    setting.request.capacity_factor = 1.25;
    size_t feasible = 0;
    for (int64_t gib = 40; gib <= 640; gib *= 2) {
        setting.request.memory_limit_bytes = gib << 30;
        struct rk_search_result result = {0};
        enum rk_status status = rk_search(&setting.request, &result, NULL);
        assert_true(status == RK_OK || status == RK_INFEASIBLE);
        assert_true(result.feasible >= feasible);
        feasible = result.feasible;
        rk_search_result_free(&result);
    }
    assert_true(feasible > 0);
    setting.request.replayed = 1000000;
    setting.request.virtual_stages = 1;
    setting.request.micro_batch_tokens = 16384;
    setting.request.offload_percent = 0;
    double before = INFINITY;
    static const enum rk_hardware_figure figures[] = {RK_HARDWARE_NODE_LINK, RK_HARDWARE_MEMORY_BANDWIDTH,
                                                      RK_HARDWARE_PEAK_BF16};
    for (size_t i = 0; i <= sizeof figures / sizeof figures[0]; i++) {
        struct rk_search_result result = search(&setting, RK_OK);
        assert_true(result.judgements[0].seconds <= before * (1 + 1e-9));
        before = result.judgements[0].seconds;
        rk_search_result_free(&result);
        if (i == sizeof figures / sizeof figures[0])
            break;
        setting.hardware.figures[figures[i]].value *= 2;
        rk_cost_hardware_free(setting.profile);
        /* Without the published times, which would undo the faster machine. */
        setting.hardware.published_count = 0;
        assert_int_equal(rk_cost_hardware_make(&setting.hardware, &setting.architecture, 8192, &setting.profile, NULL),
                         RK_OK);
        setting.costs = rk_cost_hardware_source(setting.profile);
        if (i == 0)
            before = INFINITY;
    }
    setting_close(&setting);
}

/* The answer with a few replays is the answer with all: the closed form ranks well enough for the best to be among
 * them. */
static void test_few_replays_find_the_best(void **state) {
    (void)state;
    static const char *const models[] = {"olmoe-cpu-tiny", "glm4-moe-cpu-tiny", "report-8l-n8"};
    for (size_t i = 0; i < 3; i++)
        for (int cpu = 0; cpu < 2; cpu++) {
            struct setting setting;
            int64_t sequence = i == 2 ? 8192 : 128;
            setting_open(&setting, models[i], "b300", 4, sequence, 64 * sequence);
            if (cpu)
                become_cpu(&setting);
            setting.request.offload_percent = 0;
            struct rk_search_result few = search(&setting, RK_OK);
            setting.request.replayed = 1000000;
            struct rk_search_result all = search(&setting, RK_OK);
            double regret = few.judgements[0].seconds / all.judgements[0].seconds - 1;
            print_message("%s, %s: %zu feasible, regret %.3f %%\n", models[i], cpu ? "shared cores" : "GPUs",
                          all.feasible, 100 * regret);
            assert_true(regret < 0.01);
            rk_search_result_free(&few);
            rk_search_result_free(&all);
            setting_close(&setting);
        }
}

/* 1472 ranks with PP 8 leave 184 ranks a stage, which 32 sequences do not fill. */
static void test_batch_must_divide(void **state) {
    (void)state;
    struct setting setting;
    setting_open(&setting, "report-medium-64e", "b300", 1472, 8192, 32 * 8192);
    setting.request.pipeline = 8;
    setting.request.virtual_stages = 1;
    struct rk_search_result result = search(&setting, RK_INFEASIBLE);
    for (size_t i = 0; i < result.kept; i++) {
        assert_int_equal(result.judgements[i].candidate.data_parallel, 184);
        assert_int_not_equal(result.judgements[i].refusal, RK_REFUSAL_NONE);
    }
    rk_search_result_free(&result);
    setting.request.pipeline = 7;
    struct rk_error error = {0};
    assert_int_equal(rk_search(&setting.request, &result, &error), RK_USAGE);
    assert_non_null(strstr(error.text, "PP 7 does not divide 1472"));
    setting.request.pipeline = 0;
    setting.request.global_batch_tokens = 1000;
    assert_int_equal(rk_search(&setting.request, &result, &error), RK_USAGE);
    assert_non_null(strstr(error.text, "whole sequences"));
    setting_close(&setting);
}

/* An EP-MP group stays on one host. */
static void test_topology(void **state) {
    (void)state;
    struct setting setting;
    setting_open(&setting, "report-8l-n32", "b300", 16, 8192, 1048576);
    setting.request.expert_parallel = 16;
    struct rk_search_result result = search(&setting, RK_INFEASIBLE);
    size_t refused = 0;
    for (size_t i = 0; i < result.kept; i++)
        if (result.judgements[i].refusal == RK_REFUSAL_TOPOLOGY) {
            assert_true(fabs(result.judgements[i].need - 16) < 1e-9 && fabs(result.judgements[i].have - 8) < 1e-9);
            refused++;
        }
    assert_true(refused > 0);
    rk_search_result_free(&result);
    setting_close(&setting);
    /* Three ranks are few enough, but the eight of a host are no multiple of them. */
    setting_open(&setting, "report-8l-n32", "b300", 24, 8192, 1572864);
    setting.architecture.experts = 48;
    setting.request.expert_parallel = 3;
    setting.request.pipeline = 1;
    struct rk_error error = {0};
    assert_int_equal(rk_search(&setting.request, &result, &error), RK_INFEASIBLE);
    assert_int_equal(result.judgements[0].refusal, RK_REFUSAL_TOPOLOGY);
    assert_string_equal(result.judgements[0].remedy, "an EP that divides the 8 ranks of a host");
    assert_null(strstr(error.text, "need 3"));
    rk_search_result_free(&result);
    setting_close(&setting);
}

/* A schedule that no plan may hold is refused by the search, exactly where the lowering refuses it. */
static void test_long_schedules(void **state) {
    (void)state;
    struct setting setting;
    setting_open(&setting, "olmoe-cpu-tiny", "b300", 1, 128, (int64_t)1 << 30);
    become_cpu(&setting);
    setting.request.recompute = RK_RECOMPUTE_NONE;
    setting.request.offload_percent = 0;
    struct rk_searching searching;
    struct rk_error error = {0};
    assert_int_equal(rk_searching_open(&setting.request, &searching, &error), RK_OK);
    size_t refused = 0, others = 0;
    for (struct rk_search_index index = {0}; index.pipeline < searching.space.pipeline_count;
         next_index(&searching.space, &index)) {
        struct rk_verdict verdict;
        struct rk_candidate candidate;
        assert_int_equal(rk_search_judge(&searching, &index, &verdict, NULL), RK_OK);
        rk_search_verdict_candidate(&searching, &verdict, &candidate);
        bool fits = rk_candidate_check_sizes(&setting.architecture, &candidate, NULL) == RK_OK;
        assert_int_equal(verdict.refusal == RK_REFUSAL_SIZE, !fits);
        refused += !fits;
        others += fits;
    }
    assert_true(refused > 0 && others > 0);
    rk_searching_close(&searching);
    setting_close(&setting);
}

/* Candidates that cannot be lowered are refused one by one: the search itself does not fail. */
static void test_absurd_sizes(void **state) {
    (void)state;
    struct setting setting;
    setting_open(&setting, "olmoe-cpu-tiny", "b300", 1, 1 << 20, (int64_t)1 << 24);
    setting.architecture.hidden = 1;
    setting.architecture.heads = setting.architecture.kv_heads = setting.architecture.head_dim = 65536;
    struct rk_search_result result = {0};
    struct rk_error error = {0};
    assert_int_equal(rk_search(&setting.request, &result, &error), RK_INFEASIBLE);
    assert_int_equal(result.refused[RK_REFUSAL_SIZE], result.count);
    assert_true(result.count > 0);
    assert_non_null(strstr(error.text, "values of a micro-batch"));
    rk_search_result_free(&result);
    setting.request.world = (int64_t)1 << 30;
    assert_int_equal(rk_search(&setting.request, &result, &error), RK_USAGE);
    setting_close(&setting);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_equal_layout),
        cmocka_unit_test(test_limit_is_exact),
        cmocka_unit_test(test_report_offload),
        cmocka_unit_test(test_ultra),
        cmocka_unit_test(test_cpu_refusals),
        cmocka_unit_test(test_more_is_never_worse),
        cmocka_unit_test(test_few_replays_find_the_best),
        cmocka_unit_test(test_batch_must_divide),
        cmocka_unit_test(test_topology),
        cmocka_unit_test(test_long_schedules),
        cmocka_unit_test(test_absurd_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
