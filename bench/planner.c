/* Speed of the planner, on one core: candidates judged per second and simulated ops per second.
 *
 * Usage: bench_planner [MODEL.json HARDWARE.json RANKS SEQUENCE TOKENS]   (default: Ultra-128E on 512 B300)
 * The first search of a process makes the templates; the judge alone is then timed over the whole space. */
#include "base/clock.h"
#include "model/cost_hardware.h"
#include "model/search_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const struct rk_error *error) {
    fprintf(stderr, "%s\n", error->text);
    return (int)error->status;
}

/* All candidates of the space, `rounds` times; returns how many were judged. */
static int64_t judge_all(struct rk_searching *searching, int rounds, struct rk_error *error) {
    const struct rk_search_space *space = &searching->space;
    int64_t judged = 0;
    struct rk_search_index i;
    struct rk_verdict verdict;
    for (int round = 0; round < rounds; round++)
        for (i.pipeline = 0; i.pipeline < space->pipeline_count; i.pipeline++)
            for (i.virtual_stages = 0; i.virtual_stages < space->virtual_count; i.virtual_stages++)
                for (i.expert = 0; i.expert < space->expert_count; i.expert++)
                    for (i.micro_batch = 0; i.micro_batch < space->micro_batch_count; i.micro_batch++)
                        for (i.recompute = 0; i.recompute < space->recompute_count; i.recompute++)
                            for (i.offload = 0; i.offload < space->offload_count; i.offload++, judged++)
                                if (rk_search_judge(searching, &i, &verdict, NULL) != RK_OK)
                                    exit(failed(error));
    return judged;
}

static void time_judge(const struct rk_search_request *request) {
    struct rk_searching searching;
    struct rk_error error = {0};
    if (rk_searching_open(request, &searching, &error) != RK_OK)
        exit(failed(&error));
    double before = rk_clock_seconds();
    int64_t judged = judge_all(&searching, 1, &error);
    double first = rk_clock_seconds() - before;
    before = rk_clock_seconds();
    judged = judge_all(&searching, 10, &error);
    double again = rk_clock_seconds() - before;
    printf("judge:     %lld candidates; with their templates %.3f s, then %.0f candidates/s\n", (long long)judged / 10,
           first, (double)judged / again);
    rk_searching_close(&searching);
}

static void time_search(const struct rk_search_request *request, struct rk_candidate *best) {
    struct rk_search_result result = {0};
    struct rk_error error = {0};
    double before = rk_clock_seconds();
    if (rk_search(request, &result, &error) != RK_OK)
        exit(failed(&error));
    printf("search:    %zu candidates, the best replayed, in %.3f s\n", result.count, rk_clock_seconds() - before);
    *best = result.judgements[0].candidate;
    rk_search_result_free(&result);
}

static void time_simulator(const struct rk_search_request *request, const struct rk_candidate *candidate) {
    struct rk_program *programs[RK_STAGES_MAX];
    struct rk_error error = {0};
    double ops = 0, best = 0;
    for (int32_t s = 0; s < candidate->pipeline; s++) {
        if (rk_program_lower(request->architecture, candidate, s, &programs[s], &error) != RK_OK)
            exit(failed(&error));
        for (size_t v = 0; v < programs[s]->visit_count; v++)
            ops += (double)programs[s]->segments[programs[s]->schedule[v].segment].op_count;
    }
    for (int round = 0; round < 5; round++) {
        struct rk_simulation simulation;
        double before = rk_clock_seconds();
        if (rk_simulate((const struct rk_program *const *)programs, request->machine, request->costs, false,
                        &simulation, &error) != RK_OK)
            exit(failed(&error));
        double rate = ops / (rk_clock_seconds() - before);
        best = rate > best ? rate : best;
        rk_simulation_free(&simulation);
    }
    printf("simulator: %.0f ops on %d stages, %.1f million ops/s (best of five)\n", ops, candidate->pipeline,
           best / 1e6);
    for (int32_t s = 0; s < candidate->pipeline; s++)
        rk_program_free(programs[s]);
}

int main(int argc, char **argv) {
    const char *model = argc > 1 ? argv[1] : "examples/models/report-ultra-128e.json";
    const char *profile = argc > 2 ? argv[2] : "hardware/b300.json";
    int64_t ranks = 512, sequence = 8192, batch = 64 << 20;
    static struct rk_architecture architecture;
    static struct rk_hardware hardware;
    struct rk_machine machine;
    struct rk_cost_hardware *costs = NULL;
    struct rk_error error = {0};
    if ((argc > 3 && rk_parse_count("RANKS", argv[3], &ranks, &error) != RK_OK) ||
        (argc > 4 && rk_parse_count("SEQUENCE", argv[4], &sequence, &error) != RK_OK) ||
        (argc > 5 && rk_parse_count("TOKENS", argv[5], &batch, &error) != RK_OK) ||
        rk_architecture_read_file(model, &architecture, NULL, &error) != RK_OK ||
        rk_hardware_read_file(profile, &hardware, &error) != RK_OK ||
        rk_hardware_machine(&hardware, &machine, &error) != RK_OK ||
        rk_cost_hardware_make(&hardware, &architecture, sequence, &costs, &error) != RK_OK)
        return failed(&error);
    struct rk_cost_source source = rk_cost_hardware_source(costs);
    struct rk_search_request request = {.architecture = &architecture,
                                        .machine = &machine,
                                        .costs = &source,
                                        .world = ranks,
                                        .sequence = sequence,
                                        .global_batch_tokens = batch,
                                        .type = RK_BF16,
                                        .offload_percent = -1,
                                        .recompute = -1};
    struct rk_candidate best;
    printf("%s on %lld x %s, steps of %lld tokens\n", architecture.name, (long long)ranks, hardware.name,
           (long long)batch);
    time_judge(&request);
    time_search(&request, &best);
    time_simulator(&request, &best);
    rk_cost_hardware_free(costs);
    return 0;
}
