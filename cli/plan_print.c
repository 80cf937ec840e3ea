#include "cli/plan_print.h"

#include "model/count.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BAR_WIDTH = 40, TERMS_SHOWN = 12, RUNNERS_SHOWN = 5 };

/* Two step times nearer than this are the same for all that a user would do. */
static const double TIE = 0.01;

/* ---- small parts ---- */

void rk_plan_print_candidate(const struct rk_candidate *candidate, struct rk_text *text) {
    rk_text_format(text, "PP %d", candidate->pipeline);
    if (candidate->virtual_stages > 1)
        rk_text_format(text, " x %d virtual", candidate->virtual_stages);
    rk_text_format(text, ", EP %d, D %d, micro-batch %lld, recompute %s, offload %d %%", candidate->expert_parallel,
                   candidate->data_parallel, (long long)candidate->micro_batch_tokens,
                   rk_recompute_name(candidate->recompute), candidate->offload_percent);
}

static void heading(struct rk_text *text, const char *title) {
    rk_text_format(text, "\n%s\n", title);
}

/* A bar from `from` to `to` of a whole of 1. */
static void bar(struct rk_text *text, double from, double to) {
    int first = (int)floor(from * BAR_WIDTH + 0.5), last = (int)floor(to * BAR_WIDTH + 0.5);
    if (last == first && to - from > 0)
        last = first < BAR_WIDTH ? first + 1 : first;
    if (last > first && last > BAR_WIDTH) {
        first -= last - BAR_WIDTH;
        last = BAR_WIDTH;
    }
    rk_text_add(text, "|");
    for (int i = 0; i < BAR_WIDTH; i++)
        rk_text_add(text, i >= first && i < last ? "#" : " ");
    rk_text_add(text, "|");
}

static int32_t heaviest_stage(const struct rk_plan *plan) {
    int32_t best = 0;
    for (int32_t s = 1; s < plan->candidate.pipeline; s++)
        if (plan->arena_bytes[s] > plan->arena_bytes[best])
            best = s;
    return best;
}

static int64_t limit_bytes(const struct rk_plan_view *view) {
    return view->request->memory_limit_bytes > 0 ? view->request->memory_limit_bytes
                                                 : view->machine->memory_bytes - view->machine->reserved_bytes;
}

/* ---- summary ---- */

static void print_candidates(const struct rk_plan_view *view, struct rk_text *text) {
    const struct rk_search_result *result = view->result;
    rk_text_format(text, "candidates  %zu judged", result->count);
    if (view->search_seconds > 0)
        rk_text_format(text, " in %.2f s", view->search_seconds);
    rk_text_format(text, ", %zu feasible", result->feasible);
    for (int kind = RK_REFUSAL_NONE + 1; kind < RK_REFUSAL_COUNT; kind++)
        if (result->refused[kind] > 0)
            rk_text_format(text, ", %zu refused for %s", result->refused[kind], rk_refusal_name((enum rk_refusal)kind));
    rk_text_add(text, "\n");
}

static void print_head(const struct rk_plan_view *view, struct rk_text *text) {
    const struct rk_search_request *request = view->request;
    struct rk_parameter_count count;
    rk_count_parameters(view->architecture, &count);
    rk_text_format(text, "model       %s, %.3f B parameters, %.3f B active\n", view->architecture->name,
                   (double)count.total / 1e9, (double)count.active / 1e9);
    rk_text_format(text, "machine     %s, %lld ranks\n", view->machine->name, (long long)request->world);
    rk_text_format(text, "step        %lld tokens in sequences of %lld, %s\n", (long long)request->global_batch_tokens,
                   (long long)request->sequence, rk_data_type_name(request->type));
    print_candidates(view, text);
}

static void print_rate(const struct rk_plan_view *view, struct rk_text *text) {
    const struct rk_plan *plan = view->plan;
    double tokens = (double)plan->candidate.global_batch_tokens, ranks = (double)view->request->world;
    rk_text_format(text, "throughput  %.0f tokens/s, %.1f tokens/s for each rank", tokens / plan->seconds,
                   tokens / plan->seconds / ranks);
    if (view->machine->dense_peak.value > 0) {
        struct rk_token_flops flops;
        rk_count_token_flops(view->architecture, plan->candidate.sequence, RK_COUNT_CAUSAL, &flops);
        double mfu = rk_count_mfu(flops.total, tokens, plan->seconds, ranks, view->machine->dense_peak.value);
        rk_text_format(text, ", MFU %.1f %% of %.4g TFLOP/s (causal, useful FLOPs)", 100 * mfu,
                       view->machine->dense_peak.value / 1e12);
    }
    rk_text_add(text, "\n");
}

static void print_choice(const struct rk_plan_view *view, struct rk_text *text) {
    const struct rk_plan *plan = view->plan;
    char seconds[32], low[32], high[32];
    int32_t heaviest = heaviest_stage(plan);
    rk_text_add(text, "plan        ");
    rk_plan_print_candidate(&plan->candidate, text);
    rk_text_format(text, "\n            %lld micro-batches a step, capacity factor %g, %s routing\n",
                   (long long)rk_candidate_micro_batches(&plan->candidate), plan->candidate.capacity_factor,
                   rk_routing_name(plan->candidate.routing));
    rk_text_format(text, "step time   %s, 95 %% interval %s to %s\n",
                   rk_format_seconds(plan->seconds, seconds, sizeof seconds),
                   rk_format_seconds(plan->low, low, sizeof low), rk_format_seconds(plan->high, high, sizeof high));
    print_rate(view, text);
    rk_text_format(text, "memory      %.3f GiB of %.3f GiB on the heaviest stage (%d)",
                   (double)plan->arena_bytes[heaviest] / RK_GIB, (double)limit_bytes(view) / RK_GIB, heaviest);
    if (plan->host_bytes[heaviest] > 0)
        rk_text_format(text, ", and %.3f GiB of the offload pool", (double)plan->host_bytes[heaviest] / RK_GIB);
    rk_text_add(text, "\n");
}

void rk_plan_print_summary(const struct rk_plan_view *view, struct rk_text *text) {
    print_head(view, text);
    if (view->plan != NULL)
        print_choice(view, text);
}

/* ---- where the time goes ---- */

static void account_line(struct rk_text *text, const char *name, double seconds, double whole, double *from) {
    rk_text_format(text, "  %-18s %12.3f %6.1f %% ", name, 1e3 * seconds, 100 * seconds / whole);
    bar(text, *from / whole, (*from + seconds) / whole);
    rk_text_add(text, "\n");
    *from += seconds;
}

static void print_waterfall(const struct rk_plan_view *view, struct rk_text *text) {
    const struct rk_plan *plan = view->plan;
    int32_t stage = rk_stage_deciding(plan->stages, plan->candidate.pipeline);
    const struct rk_stage_time *time = &plan->stages[stage];
    double overhead = plan->seconds - time->total, from = 0, whole = plan->seconds;
    heading(text, "Where the step's time goes");
    rk_text_format(text, "  %-18s %12s %8s   on stage %d, which waits least for others\n", "", "ms", "share", stage);
    for (int account = 0; account < RK_STAGE_ACCOUNT_COUNT; account++)
        account_line(text, rk_stage_account_name(account), rk_stage_account_seconds(time, account), whole, &from);
    account_line(text, "step overhead", overhead > 0 ? overhead : 0, whole, &from);
}

static int by_seconds(const void *a, const void *b) {
    const struct rk_plan_term *left = *(const struct rk_plan_term *const *)a;
    const struct rk_plan_term *right = *(const struct rk_plan_term *const *)b;
    return (left->seconds < right->seconds) - (left->seconds > right->seconds);
}

static void print_terms(const struct rk_plan *plan, struct rk_text *text) {
    const struct rk_plan_term *order[RK_OP_KIND_COUNT];
    double all = 0;
    for (size_t i = 0; i < plan->term_count; i++) {
        order[i] = &plan->terms[i];
        all += plan->terms[i].seconds;
    }
    qsort(order, plan->term_count, sizeof order[0], by_seconds);
    heading(text, "Ops of that stage, all streams");
    rk_text_format(text, "  %-22s %8s %12s %7s %6s  %-13s %s\n", "op", "count", "ms", "share", "+-", "origin",
                   "source");
    size_t shown = plan->term_count < TERMS_SHOWN ? plan->term_count : TERMS_SHOWN;
    double rest = 0;
    for (size_t i = 0; i < plan->term_count; i++) {
        const struct rk_plan_term *term = order[i];
        if (i >= shown) {
            rest += term->seconds;
            continue;
        }
        rk_text_format(text, "  %-22s %8lld %12.3f %5.1f %% %4.0f %%  %-13s %s\n", rk_op_name(term->kind),
                       (long long)term->count, 1e3 * term->seconds, 100 * term->seconds / all,
                       100 * term->relative_uncertainty, rk_origin_name(term->origin), term->source);
    }
    if (plan->term_count > shown)
        rk_text_format(text, "  %-22s %8s %12.3f %5.1f %%\n", "others", "", 1e3 * rest, 100 * rest / all);
}

/* The share of the time that rests on each origin, and the ops whose doubt widens the interval most. */
static void print_coverage(const struct rk_plan *plan, struct rk_text *text) {
    double share[RK_ORIGIN_COUNT] = {0}, all = 0, doubt = 0;
    const struct rk_plan_term *widest = NULL;
    for (size_t i = 0; i < plan->term_count; i++) {
        const struct rk_plan_term *term = &plan->terms[i];
        share[term->origin] += term->seconds;
        all += term->seconds;
        if (widest == NULL || term->seconds * term->relative_uncertainty > doubt) {
            widest = term;
            doubt = term->seconds * term->relative_uncertainty;
        }
    }
    heading(text, "What the figures rest on (an op counts under the worst origin of its shapes)");
    for (int origin = 0; origin < RK_ORIGIN_COUNT; origin++)
        if (share[origin] > 0)
            rk_text_format(text, "  %-18s %6.1f %% of the op time\n", rk_origin_name((enum rk_origin)origin),
                           100 * share[origin] / all);
    if (widest != NULL)
        rk_text_format(text, "  The interval would shrink most by measuring %s: +-%.3f ms of %.3f ms.\n",
                       rk_op_name(widest->kind), 1e3 * doubt, 1e3 * widest->seconds);
}

/* ---- stages and memory ---- */

void rk_plan_print_stages(const struct rk_stage_time *stages, int32_t count, struct rk_text *text) {
    rk_text_format(text, "  %5s", "stage");
    for (int account = 0; account < RK_STAGE_ACCOUNT_COUNT; account++)
        rk_text_format(text, " %11s", rk_stage_account_heading(account));
    rk_text_format(text, " %11s   ms\n", "total");
    for (int32_t s = 0; s < count; s++) {
        rk_text_format(text, "  %5d", s);
        for (int account = 0; account < RK_STAGE_ACCOUNT_COUNT; account++)
            rk_text_format(text, " %11.3f", 1e3 * rk_stage_account_seconds(&stages[s], account));
        rk_text_format(text, " %11.3f\n", 1e3 * stages[s].total);
    }
}

static bool owner_used(const struct rk_plan *plan, int owner) {
    for (int32_t s = 0; s < plan->candidate.pipeline; s++)
        if (plan->owner_bytes[s][owner] > 0)
            return true;
    return false;
}

static void print_memory(const struct rk_plan_view *view, struct rk_text *text) {
    const struct rk_plan *plan = view->plan;
    heading(text, "Memory by owner (MiB of one rank; the sum is what the run allocates)");
    rk_text_format(text, "  %5s", "stage");
    for (int owner = 0; owner < RK_OWNER_COUNT; owner++)
        if (owner_used(plan, owner))
            rk_text_format(text, " %11s", rk_owner_name((enum rk_owner)owner));
    rk_text_format(text, " %12s %8s %11s\n", "sum", "of limit", "host pool");
    for (int32_t s = 0; s < plan->candidate.pipeline; s++) {
        rk_text_format(text, "  %5d", s);
        for (int owner = 0; owner < RK_OWNER_COUNT; owner++)
            if (owner_used(plan, owner))
                rk_text_format(text, " %11.2f", (double)plan->owner_bytes[s][owner] / 1048576.0);
        rk_text_format(text, " %12.2f %6.1f %% %11.2f\n", (double)plan->arena_bytes[s] / 1048576.0,
                       100 * (double)plan->arena_bytes[s] / (double)limit_bytes(view),
                       (double)plan->host_bytes[s] / 1048576.0);
    }
}

/* ---- what was not chosen ---- */

static bool same_but_recompute(const struct rk_candidate *left, const struct rk_candidate *right) {
    return left->pipeline == right->pipeline && left->virtual_stages == right->virtual_stages &&
           left->expert_parallel == right->expert_parallel && left->micro_batch_tokens == right->micro_batch_tokens &&
           right->offload_percent == 0;
}

/* The same layout under every policy: by how much each fits or does not. */
static void print_policies(const struct rk_plan_view *view, struct rk_text *text) {
    double limit = (double)limit_bytes(view) / RK_GIB;
    heading(text, "Recompute at this layout, without offload");
    for (int policy = 0; policy < RK_RECOMPUTE_COUNT; policy++) {
        for (size_t i = 0; i < view->result->kept; i++) {
            const struct rk_judgement *judgement = &view->result->judgements[i];
            if (judgement->candidate.recompute != (enum rk_recompute)policy ||
                !same_but_recompute(&view->plan->candidate, &judgement->candidate) || judgement->arena_bytes[1] == 0)
                continue;
            double need = (double)judgement->arena_bytes[1] / RK_GIB;
            rk_text_format(text, "  %-10s needs %10.3f GiB on stage %d: ", rk_recompute_name((enum rk_recompute)policy),
                           need, judgement->heaviest_stage);
            if (judgement->refusal == RK_REFUSAL_MEMORY)
                rk_text_format(text, "does not fit in %.3f GiB, by %.3f GiB\n", limit, need - limit);
            else if (judgement->refusal != RK_REFUSAL_NONE)
                rk_text_format(text, "refused for %s\n", rk_refusal_name(judgement->refusal));
            else
                rk_text_format(text, "fits, %.3f GiB to spare; step %.3f ms%s\n", limit - need,
                               1e3 * judgement->seconds, judgement->simulated ? "" : " (closed form)");
            break;
        }
    }
}

static bool is_chosen(const struct rk_plan *plan, const struct rk_candidate *candidate) {
    return same_but_recompute(&plan->candidate,
                              &(struct rk_candidate){.pipeline = candidate->pipeline,
                                                     .virtual_stages = candidate->virtual_stages,
                                                     .expert_parallel = candidate->expert_parallel,
                                                     .micro_batch_tokens = candidate->micro_batch_tokens}) &&
           plan->candidate.recompute == candidate->recompute &&
           plan->candidate.offload_percent == candidate->offload_percent;
}

static void print_runners(const struct rk_plan_view *view, struct rk_text *text) {
    heading(text, "Runners-up");
    rk_text_format(text, "  %12s %8s %10s\n", "ms", "slower", "GiB");
    int shown = 0;
    for (size_t i = 0; i < view->result->kept && shown < RUNNERS_SHOWN; i++) {
        const struct rk_judgement *judgement = &view->result->judgements[i];
        if (judgement->refusal != RK_REFUSAL_NONE)
            break;
        if (is_chosen(view->plan, &judgement->candidate))
            continue;
        double slower = judgement->seconds / view->plan->seconds - 1;
        rk_text_format(text, "  %12.3f %6.2f %% %10.3f  ", 1e3 * judgement->seconds, 100 * slower,
                       (double)judgement->arena_bytes[1] / RK_GIB);
        rk_plan_print_candidate(&judgement->candidate, text);
        if (!judgement->simulated)
            rk_text_add(text, " (closed form)");
        rk_text_add(text, fabs(slower) < TIE ? "  tie\n" : "\n");
        shown++;
    }
    if (shown == 0)
        rk_text_add(text, "  none: the chosen plan is the only one that fits\n");
}

static void print_link(const struct rk_machine *machine, const struct rk_judgement *judgement, struct rk_text *text) {
    bool to_host = judgement->refusal == RK_REFUSAL_OFFLOAD_D2H;
    const struct rk_figure *specified = to_host ? &machine->d2h_specification : &machine->h2d_specification;
    const struct rk_figure *used = to_host ? &machine->d2h : &machine->h2d;
    rk_text_format(
        text,
        "      needs %.3g GB/s to the host while a block's forward runs and %.3g GB/s back while its backward "
        "runs;\n      has ",
        judgement->offload_need[0], judgement->offload_need[1]);
    if (specified->value > 0 && used->origin != RK_ORIGIN_SPECIFICATION)
        rk_text_format(text, "%.3g GB/s (specification), ", specified->value / 1e9);
    rk_text_format(text, "%.3g GB/s (%s)", used->value / 1e9,
                   used->origin == RK_ORIGIN_SPECIFICATION ? "specification" : "measured");
    if (specified->value > 0 && used->origin != RK_ORIGIN_SPECIFICATION)
        rk_text_format(text, ": %.1f and %.1f times too much", judgement->need / (specified->value / 1e9),
                       judgement->need / (used->value / 1e9));
    rk_text_add(text, "\n");
}

static void print_refusal(const struct rk_plan_view *view, const struct rk_judgement *judgement, struct rk_text *text) {
    enum rk_refusal refusal = judgement->refusal;
    rk_text_format(text, "  %s: %zu of %zu\n      ", rk_refusal_name(refusal), view->result->refused[refusal],
                   view->result->count);
    rk_plan_print_candidate(&judgement->candidate, text);
    rk_text_add(text, "\n");
    if (refusal == RK_REFUSAL_OFFLOAD_D2H || refusal == RK_REFUSAL_OFFLOAD_H2D)
        print_link(view->machine, judgement, text);
    else if (refusal == RK_REFUSAL_MEMORY || refusal == RK_REFUSAL_HOST_MEMORY)
        rk_text_format(text, "      needs %.3f GiB, has %.3f GiB: %.3f GiB too much on stage %d\n", judgement->need,
                       judgement->have, judgement->need - judgement->have, judgement->heaviest_stage);
    else if (refusal == RK_REFUSAL_TOPOLOGY && judgement->need <= judgement->have)
        rk_text_format(text,
                       "      some groups of %.0f ranks span hosts: the %.0f ranks of a host are no multiple of it\n",
                       judgement->need, judgement->have);
    else if (refusal == RK_REFUSAL_TOPOLOGY)
        rk_text_format(text, "      needs %.0f ranks on one host, has %.0f\n", judgement->need, judgement->have);
    rk_text_format(text, "      what helps: %s\n", judgement->remedy);
}

/* Examples come from the plan, which chose those nearest to itself; without one the nearest to fitting of each kind. */
static void print_refusals(const struct rk_plan_view *view, struct rk_text *text) {
    heading(text, "Refused");
    for (int kind = RK_REFUSAL_NONE + 1; kind < RK_REFUSAL_COUNT; kind++) {
        const struct rk_judgement *list = view->plan != NULL ? view->plan->examples : view->result->judgements;
        size_t count = view->plan != NULL ? view->plan->example_count : view->result->kept;
        for (size_t i = 0; i < count; i++) {
            if (list[i].refusal != (enum rk_refusal)kind)
                continue;
            print_refusal(view, &list[i], text);
            break;
        }
    }
}

void rk_plan_print_explanation(const struct rk_plan_view *view, struct rk_text *text) {
    rk_plan_print_summary(view, text);
    if (view->plan != NULL) {
        print_waterfall(view, text);
        print_terms(view->plan, text);
        print_coverage(view->plan, text);
        heading(text, "Stages");
        rk_plan_print_stages(view->plan->stages, view->plan->candidate.pipeline, text);
        print_memory(view, text);
        print_policies(view, text);
        print_runners(view, text);
    }
    print_refusals(view, text);
}
