#!/usr/bin/env bats
# reckon plan and reckon simulate from outside.
# shellcheck disable=SC2154 # bats sets status, output and stderr
load common

models() {
    echo "$SOURCE/examples/models/$1.json"
}

plan_report() {
    "$RECKON" plan --model "$(models "$1")" --hardware b300 --seq 8192 "${@:2}"
}

small() {
    "$RECKON" plan --model "$(models olmoe-cpu-tiny)" --hardware b300 --gpus 4 --seq 128 --global-batch 16Ki "$@"
}

@test "Ultra-128E on 512 GPUs: a plan, and by how much no recompute does not fit" {
    run --separate-stderr -0 plan_report report-ultra-128e --gpus 512 --global-batch 64Mi --explain
    [[ $output == *"recompute block"* ]]
    [[ $output =~ none\ +needs\ +[0-9.]+\ GiB\ on\ stage\ [0-9]+:\ does\ not\ fit\ in\ [0-9.]+\ GiB,\ by\ [0-9.]+\ GiB ]]
    [[ $output == *"Where the step's time goes"* ]]
    [[ $output == *"What the figures rest on"* ]]
    [[ $output == *"Memory by owner"* ]]
    [[ $output == *"Runners-up"* ]]
    [[ $output == *"topology: "* ]]
}

@test "the report's 8 layers on 4 GPUs: full offload is refused with need, have and the fraction that fits" {
    run --separate-stderr -0 plan_report report-8l-n32 --gpus 4 --global-batch 512Ki --explain
    [[ $output == *"offload bandwidth, device to host: "* ]]
    [[ $output == *"needs 384 GB/s to the host while a block's forward runs and 180 GB/s back while its backward runs"* ]]
    [[ $output == *"has 63 GB/s (specification), 53 GB/s (measured): 6.1 and 7.3 times too much"* ]]
    [[ $output == *"offload at most 13.8 %"* ]]
}

@test "a plan says how it is run: on one host, on several, or not at all" {
    run --separate-stderr -0 plan_report report-8l-n32 --gpus 4 --global-batch 512Ki --out plan.json
    [[ $stderr == *"plan written to plan.json, to look at only: report-8l-n32 "*"the executor does not have: "* ]]
    run --separate-stderr -0 "$RECKON" plan --model "$(models olmoe-1b-7b)" --hardware h200 --gpus 16 --seq 4096 \
        --global-batch 4Mi --out plan.json
    [[ $stderr == *"one process a GPU on every host, by Slurm: srun reckon run plan.json --data TOKENS"* ]]
}

@test "a plan is written, read back and simulated; the trace is JSON with every stage" {
    run --separate-stderr -0 small --pp 2 --ep 2 --micro-batch 256 --out plan.json
    [[ $output == *"plan        PP 2"* ]]
    [[ $stderr == *"plan written to plan.json; run it with: reckon run plan.json --nproc 4 --data TOKENS"* ]]
    run --separate-stderr -0 "$RECKON" simulate plan.json --trace trace.json
    [[ $output == *"the plan says"* ]]
    run --separate-stderr -0 "$RECKON" simulate plan.json --json
    python3 - "$output" <<'END'
import json, sys
simulated = json.loads(sys.argv[1])
assert abs(simulated["step_seconds"] - simulated["planned_seconds"]) < 1e-9 * simulated["step_seconds"]
for stage in simulated["stages"]:
    parts = sum(value for key, value in stage.items() if key != "total")
    assert abs(parts - stage["total"]) < 1e-9 * stage["total"]
trace = json.load(open("trace.json"))["traceEvents"]
ends = {}
for event in trace:
    if event["ph"] != "X":
        continue
    row = event["pid"], event["tid"]
    assert event["ts"] >= ends.get(row, 0) - 0.002, event
    ends[row] = event["ts"] + event["dur"]
assert {row[0] for row in ends} == {0, 1}
# Times in the trace are rounded to a nanosecond.
assert abs(max(ends.values()) - 1e6 * simulated["step_seconds"]) < 0.01
END
}

@test "--json is the plan itself, whatever else is asked" {
    small --json --explain --out plan.json > printed.json
    cmp printed.json plan.json
    python3 - <<'END'
import json
plan = json.load(open("plan.json"))
assert plan["format"] == "reckon-plan" and plan["version"] == 1
assert plan["search"]["candidates"] == plan["search"]["feasible"] + sum(plan["search"]["refused"].values()) >= 50
for stage in plan["stages"]:
    assert sum(stage["owner_bytes"].values()) == stage["arena_bytes"]
END
}

@test "constraints hold, and a limit refuses with need, have and a way out" {
    run --separate-stderr -0 small --pp 4 --ep 1 --micro-batch 512 --recompute attention --offload 0 --virtual-stages 1
    [[ $output == *"PP 4, EP 1, D 1, micro-batch 512, recompute attention, offload 0 %"* ]]
    run --separate-stderr -0 small --memory-limit 64MiB --explain
    [[ $output == *" refused for memory"* ]]
    [[ $output =~ needs\ [0-9.]+\ GiB,\ has\ 0.062\ GiB ]]
    [[ $output == *"what helps: "* ]]
}

@test "nothing feasible is exit code 3 and names the nearest miss; --json stays JSON" {
    run --separate-stderr -3 small --memory-limit 1MiB
    [[ $stderr == *"none of "*" candidates fits; nearest: PP "*"memory, need "* ]]
    [[ $output == *"0 feasible"* ]]
    run --separate-stderr -3 small --memory-limit 1MiB --json
    python3 -c 'import json, sys; plan = json.loads(sys.argv[1]); assert plan["feasible"] == 0 and plan["refused"]["memory"] > 0' "$output"
    run --separate-stderr -3 small --memory-limit 1MiB --explain
    [[ $output == *"Refused"* ]]
}

@test "without a calibration of this machine it is exit code 4 and says what to run" {
    fails 4 "reckon calibrate" "$RECKON" plan --model "$(models olmoe-cpu-tiny)" --gpus 2 --seq 128 --global-batch 4Ki
}

@test "what is missing or wrong is named" {
    fails 2 "--model FILE is needed" "$RECKON" plan --gpus 2 --seq 128 --global-batch 4Ki
    fails 2 "--global-batch TOKENS is needed" "$RECKON" plan --model "$(models olmoe-cpu-tiny)" --gpus 2 --seq 128
    for option in "--calibration 3" --transfer; do
        # shellcheck disable=SC2086 # an option and its value
        fails 2 "leave one out" "$RECKON" plan --model "$(models olmoe-cpu-tiny)" --hardware b300 $option --gpus 4 \
            --seq 128 --global-batch 4Ki
    done
    fails 2 "there is no profile 'b3000'" "$RECKON" plan --model "$(models olmoe-cpu-tiny)" --hardware b3000 --gpus 2 \
        --seq 128 --global-batch 4Ki
    fails 2 "none.json" "$RECKON" plan --model none.json --hardware b300 --gpus 2 --seq 128 --global-batch 4Ki
    fails 2 "PP 3 does not divide 4 ranks" small --pp 3
    fails 2 "whole sequences" "$RECKON" plan --model "$(models olmoe-cpu-tiny)" --hardware b300 --gpus 4 --seq 128 \
        --global-batch 1000
    fails 2 "--recompute" small --recompute all
    fails 2 "--offload" small --offload 101
    echo '{"model_type": "none"}' > odd.json
    fails 2 "odd.json" "$RECKON" plan --model odd.json --hardware b300 --gpus 2 --seq 128 --global-batch 4Ki
    echo '{"format": "reckon-plan"' > cut.json
    fails 2 "cut.json" "$RECKON" simulate cut.json
    fails 2 "missing.json" "$RECKON" simulate missing.json
}

@test "a plan that cannot be written is an error and leaves nothing behind" {
    run --separate-stderr -1 small --out no/such/folder/plan.json
    [[ $stderr == *"no/such/folder"* ]]
    [ "$(ls)" = "" ]
}

@test "a plan goes into the data base with its refusals when there is one" {
    small --db plans.db > /dev/null
    small --db plans.db > /dev/null
    [ "$(sqlite3 plans.db 'SELECT count(*) FROM plan')" -eq 1 ]
    [ "$(sqlite3 plans.db "SELECT count(*) FROM candidate WHERE verdict = 'chosen'")" -eq 1 ]
    [ "$(sqlite3 plans.db "SELECT count(*) FROM candidate WHERE verdict = 'refused' AND remedy != ''")" -gt 0 ]
    [ "$(sqlite3 plans.db 'SELECT count(*) FROM term_source')" -gt 10 ]
}

@test "a plan that the kernels cannot run is made with a warning, and refused by run before it starts" {
    cat >many.json <<'END'
{"model_type": "olmoe", "hidden_size": 256, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 65, "vocab_size": 256, "hidden_act": "silu",
 "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "max_position_embeddings": 4096}
END
    run --separate-stderr -0 "$RECKON" plan --model many.json --hardware h200 --gpus 1 --seq 128 --global-batch 1Ki
    [[ $stderr == *"this plan cannot be run: many: 65 routes of a token; the kernels for GPUs run at most 32"* ]]
    "$MAKE_PLAN" many.json pp=1 ep=1 d=1 tokens=128 seq=128 batch=128 backend=cpu >cpu.json
    fails 2 "65 routes of a token; the kernels for CPUs run at most 64" "$RECKON" run cpu.json --nproc 1 --synthetic --steps 1
}
