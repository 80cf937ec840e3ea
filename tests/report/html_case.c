#include "tests/report/html_case.h"

#include "executor/trace.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void make_plan(struct html_case *made, const char *name) {
    struct rk_plan *plan = &made->plan;
    static const enum rk_op_kind kinds[CASE_TERMS] = {RK_OP_GEMM_FORWARD,         RK_OP_GEMM_DGRAD, RK_OP_GEMM_WGRAD,
                                                      RK_OP_GROUPED_GEMM_FORWARD, RK_OP_DISPATCH,   RK_OP_COMBINE,
                                                      RK_OP_ATTENTION_FORWARD,    RK_OP_ADAMW};
    *plan = (struct rk_plan){.candidate = {.pipeline = CASE_STAGES,
                                           .virtual_stages = 1,
                                           .expert_parallel = 2,
                                           .data_parallel = 2,
                                           .micro_batch_tokens = 1024,
                                           .sequence = 256,
                                           .global_batch_tokens = 16384,
                                           .recompute = RK_RECOMPUTE_ATTENTION,
                                           .offload_percent = 25,
                                           .capacity_factor = 1.25},
                             .calibration = 3,
                             .seconds = 1.52,
                             .low = 1.41,
                             .high = 1.66,
                             .stages = made->stages,
                             .owner_bytes = made->owner_bytes,
                             .arena_bytes = made->arena_bytes,
                             .host_bytes = made->host_bytes,
                             .terms = made->terms,
                             .term_count = CASE_TERMS,
                             .candidates = 264,
                             .feasible = 180};
    snprintf(plan->architecture.name, sizeof plan->architecture.name, "%s", name);
    snprintf(plan->machine, sizeof plan->machine, "%s", name);
    plan->refused[RK_REFUSAL_MEMORY] = 60;
    plan->refused[RK_REFUSAL_OFFLOAD_D2H] = 24;
    for (int stage = 0; stage < CASE_STAGES; stage++) {
        made->stages[stage] = (struct rk_stage_time){.compute = 1.02 - 0.1 * stage,
                                                     .exposed_exchange = 0.17,
                                                     .exposed_pipeline = 0.03,
                                                     .bubble = 0.1 + 0.1 * stage,
                                                     .exposed_reduction = 0.06,
                                                     .optimizer = 0.08,
                                                     .exposed_offload = 0.05,
                                                     .starved = 0.01,
                                                     .total = 1.52};
        for (int family = 0; family < RK_OP_FAMILY_COUNT; family++)
            made->stages[stage].family[family] = 0.02 * (1 + (family * 5) % 11);
        for (int owner = 0; owner < RK_OWNER_COUNT; owner++) {
            made->owner_bytes[stage][owner] = (int64_t)(1 + (owner * 7 + stage) % 12) << 24;
            made->arena_bytes[stage] += made->owner_bytes[stage][owner];
        }
        made->host_bytes[stage] = 1 << 26;
    }
    for (int i = 0; i < CASE_TERMS; i++) {
        made->terms[i] = (struct rk_plan_term){.kind = kinds[i],
                                               .count = 8 * (i + 1),
                                               .seconds = 0.3 / (i + 1),
                                               .relative_uncertainty = 0.02 * (i + 1),
                                               .origin = (enum rk_origin)(i % RK_ORIGIN_COUNT)};
        snprintf(made->terms[i].source, sizeof made->terms[i].source, "%s", name);
    }
}

static void make_run(struct html_case *made, const char *name) {
    made->run = (struct rk_run_row){.id = 12,
                                    .plan_id = 3,
                                    .state = RK_RUN_FINISHED,
                                    .seed = 7,
                                    .world_size = CASE_RANKS,
                                    .started_us = INT64_C(1790000000000000),
                                    .steps = CASE_STEPS};
    snprintf(made->run.command, sizeof made->run.command, "%s", name);
    snprintf(made->run.data, sizeof made->run.data, "%s", name);
    for (int i = 0; i < CASE_STEPS; i++)
        made->steps[i] = (struct rk_step_row){.step = i,
                                              .traced = i >= CASE_STEPS - 3,
                                              .seconds = (i == 0 ? 2.4 : 1.58) + 0.02 * ((i * 7) % 5),
                                              .tokens = 16384,
                                              .loss = 3.1 + 2.6 * exp(-i / 9.0) + 0.02 * ((i * 5) % 7),
                                              .grad_norm = 1.1,
                                              .dropped_routes = i % 3,
                                              .routes = 32768,
                                              .requested_load = 1.31};
    struct rk_run_op_row *row = made->ops;
    for (int stage = 0; stage < CASE_STAGES; stage++) {
        for (int i = 0; i < CASE_TERMS; i++, row++) {
            double seconds = made->terms[i].seconds * (0.8 + 0.07 * ((i * 3 + stage) % 8));
            *row = (struct rk_run_op_row){.rank = -1,
                                          .stage = stage,
                                          .count = made->terms[i].count,
                                          .median_seconds = seconds / (double)made->terms[i].count,
                                          .total_seconds = seconds};
            snprintf(row->kind, sizeof row->kind, "%s", rk_op_name(made->terms[i].kind));
            snprintf(row->phase, sizeof row->phase, "%s", rk_phase_name(RK_PHASE_FORWARD));
        }
        for (int account = 0; account < RK_STAGE_ACCOUNT_COUNT; account++, row++) {
            double seconds = rk_stage_account_seconds(&made->stages[stage], account) * (account % 3 == 0 ? 1.07 : 0.9);
            *row = (struct rk_run_op_row){
                .rank = -1, .stage = stage, .count = 1, .median_seconds = seconds, .total_seconds = seconds};
            snprintf(row->kind, sizeof row->kind, "%s", rk_stage_account_name(account));
            snprintf(row->phase, sizeof row->phase, "account");
        }
    }
    made->op_count = (size_t)(row - made->ops);
    struct rk_run_memory_row *memory = made->memory;
    for (int rank = 0; rank < CASE_RANKS; rank++) {
        int stage = rank / 2;
        for (int owner = 0; owner < RK_OWNER_COUNT; owner++, memory++) {
            *memory = (struct rk_run_memory_row){.rank = rank,
                                                 .space = "device",
                                                 .predicted_bytes = made->owner_bytes[stage][owner],
                                                 .allocated_bytes = made->owner_bytes[stage][owner]};
            snprintf(memory->owner, sizeof memory->owner, "%s", rk_owner_name((enum rk_owner)owner));
        }
        *memory++ = (struct rk_run_memory_row){.rank = rank,
                                               .owner = "all",
                                               .space = "device",
                                               .predicted_bytes = made->arena_bytes[stage],
                                               .allocated_bytes = made->arena_bytes[stage]};
        *memory++ = (struct rk_run_memory_row){
            .rank = rank, .owner = "driver", .space = "device", .predicted_bytes = -1, .allocated_bytes = 1 << 20};
    }
}

static void make_candidates(struct html_case *made, const char *name) {
    for (int i = 0; i < 4; i++) {
        made->candidates[i] = (struct rk_candidate_row){.ordinal = i,
                                                        .need = NAN,
                                                        .have = NAN,
                                                        .seconds = 1.52 + 0.2 * i,
                                                        .low_seconds = NAN,
                                                        .high_seconds = NAN,
                                                        .peak_bytes = INT64_C(900000000)};
        snprintf(made->candidates[i].label, sizeof made->candidates[i].label, "PP %d, %s", i + 1, name);
        snprintf(made->candidates[i].verdict, sizeof made->candidates[i].verdict, "%s", i == 0 ? "chosen" : "feasible");
    }
    struct rk_candidate_row *refused = &made->candidates[3];
    snprintf(refused->verdict, sizeof refused->verdict, "refused");
    snprintf(refused->reason, sizeof refused->reason, "memory");
    snprintf(refused->unit, sizeof refused->unit, "GiB");
    snprintf(refused->remedy, sizeof refused->remedy, "%s", name);
    refused->need = 3.4;
    refused->have = 2;
    refused->seconds = NAN;
}

/* Two streams on each stage, ops of every phase in turn. */
static void make_simulation(struct html_case *made) {
    for (int phase = 0; phase < RK_PHASE_COUNT; phase++)
        made->program_ops[phase] =
            (struct rk_op){.phase = (enum rk_phase)phase, .shape = {.kind = (enum rk_op_kind)(phase + 3)}};
    for (int stage = 0; stage < CASE_STAGES; stage++) {
        made->programs[stage] = (struct rk_program){.ops = made->program_ops, .op_count = RK_PHASE_COUNT};
        made->program_pointers[stage] = &made->programs[stage];
    }
    for (int i = 0; i < CASE_TIMELINE; i++) {
        int lane = i % 4;
        double start = 1.4 * (i / 4) / (CASE_TIMELINE / 4) + 0.05 * (lane / 2);
        made->timeline[i] = (struct rk_timeline_entry){.stage = lane / 2,
                                                       .stream = lane % 2 == 0 ? RK_STREAM_COMPUTE : RK_STREAM_EXCHANGE,
                                                       .op = (size_t)(i * RK_PHASE_COUNT / CASE_TIMELINE),
                                                       .start = start,
                                                       .end = start + (lane % 2 == 0 ? 0.02 : 0.008)};
    }
    made->simulation = (struct rk_simulation){.step_seconds = 1.52,
                                              .stages = made->stages,
                                              .stage_count = CASE_STAGES,
                                              .timeline = made->timeline,
                                              .timeline_count = CASE_TIMELINE};
}

int html_case_make(struct html_case *made, const char *name) {
    memset(made, 0, sizeof *made);
    make_plan(made, name);
    make_run(made, name);
    make_candidates(made, name);
    make_simulation(made);
    made->plan_row.created_us = INT64_C(1790000000000000);
    snprintf(made->plan_row.git_revision, sizeof made->plan_row.git_revision, "%.60s", name);
    struct rk_compare_input input = {.plan = &made->plan,
                                     .steps = made->steps,
                                     .step_count = CASE_STEPS,
                                     .ops = made->ops,
                                     .op_count = made->op_count,
                                     .memory = made->memory,
                                     .memory_count = sizeof made->memory / sizeof made->memory[0],
                                     .tolerance = NAN};
    if (rk_compare(&input, &made->comparison, NULL) != RK_OK)
        return -1;
    made->input = (struct rk_html_input){.plan = &made->plan,
                                         .plan_name = name,
                                         .plan_row = &made->plan_row,
                                         .candidates = made->candidates,
                                         .candidate_count = 4,
                                         .run = &made->run,
                                         .steps = made->steps,
                                         .step_count = CASE_STEPS,
                                         .memory = made->memory,
                                         .memory_count = sizeof made->memory / sizeof made->memory[0],
                                         .comparison = &made->comparison,
                                         .simulation = &made->simulation,
                                         .programs = made->program_pointers,
                                         .simulation_note = name};
    return 0;
}

void html_case_free(struct html_case *made) {
    rk_comparison_free(&made->comparison);
}
