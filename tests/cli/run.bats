#!/usr/bin/env bats
# reckon run and reckon compare from outside.
# shellcheck disable=SC2154 # bats sets status, output and stderr
load common

# plan NAME key=value... : a plan of the tiny OLMoE in NAME.
plan() {
    local name=$1
    shift
    "$MAKE_PLAN" "$SOURCE/examples/models/olmoe-cpu-tiny.json" "$@" > "$name"
}

# tokens COUNT FILE: bytes 0..255 in turn, as uint16.
tokens() {
    head -c "$1" /dev/urandom | "$RECKON" tokenize - --out "$2" > /dev/null
}

@test "one rank trains on a token file, and compare holds it against the plan" {
    plan p.json
    tokens 20000 text.u16
    run "$RECKON" run p.json --data text.u16 --steps 9 --dump-losses losses
    [ "$status" -eq 0 ]
    [[ $output == *"as predicted to the byte on every rank"* ]]
    [[ $output == *"run 1 is stored"* ]]
    [ "$(grep -c -v '^#' losses)" -eq 9 ]
    run "$RECKON" compare
    [ "$status" -eq 0 ]
    [[ $output == *"where the step goes"* ]]
    [[ $output == *"grouped_gemm_forward"* ]]
    [[ $output == *"rank 0 device all"* ]]
    "$RECKON" compare 1 --json | python3 -c 'import json, sys
d = json.load(sys.stdin)
assert d["memory_rows"] == d["memory_exact"] > 5, d
assert {r["level"] for r in d["rows"]} >= {"step", "account", "phase", "family", "op", "memory"}'
}

@test "compare ends with 5 outside the tolerance" {
    plan p.json
    "$RECKON" run p.json --synthetic --steps 6 > /dev/null
    run --separate-stderr -5 "$RECKON" compare --tolerance 0.01
    [[ $stderr == *"outside --tolerance"* ]]
    # The plan is of a fast machine: a run may take as much longer as it will and is less than 100 % away.
    "$RECKON" compare --tolerance 1000 > within
    grep -q "where the step goes" within
}

@test "compare without a database, without a run, with an unknown run" {
    fails 4 "reckon" "$RECKON" compare
    [ ! -e "$XDG_DATA_HOME/reckon/reckon.db" ]
    plan p.json
    "$RECKON" run p.json --synthetic --steps 2 --trace-steps 0 > /dev/null
    fails 2 "99" "$RECKON" compare 99
    fails 2 "RUN" "$RECKON" compare frog
}

@test "four ranks: two stages, expert parallel" {
    plan p.json pp=2 ep=2 d=2
    run "$RECKON" run p.json --nproc 4 --synthetic --steps 4 --json
    [ "$status" -eq 0 ]
    python3 -c 'import json, sys
d = json.loads(sys.argv[1])
assert len(d["steps"]) == 4 and len(d["ranks"]) == 4
assert all(r["arena_bytes"] == r["predicted_arena_bytes"] for r in d["ranks"])
assert d["steps"][0]["dropped"] == 0 and d["steps"][0]["routes"] > 0' "$output"
}

@test "layouts give the same losses" {
    plan one.json
    plan four.json pp=2 ep=2 d=2
    "$RECKON" run one.json --synthetic --steps 3 --dump-losses one > /dev/null
    "$RECKON" run four.json --nproc 4 --synthetic --steps 3 --dump-losses four --dump-gradients gradients > /dev/null
    python3 -c '
a, b = ([list(map(float, l.split())) for l in open(f) if l[0] != "#"] for f in ("one", "four"))
assert len(a) == len(b) == 3
assert all(abs(x - y) <= 2e-6 * abs(x) for u, v in zip(a, b) for x, y in zip(u, v)), (a, b)'
    head -1 gradients | grep -q tensors-1
}

@test "weights go out and come back" {
    plan p.json
    "$RECKON" run p.json --synthetic --steps 2 --seed 5 --save-weights w --save-final f1 > /dev/null
    "$RECKON" run p.json --synthetic --steps 2 --seed 5 --load-weights w --save-final f2 > /dev/null
    cmp f1 f2
    run ! cmp w f1
    head -c 100 w > short
    fails 2 "short" "$RECKON" run p.json --synthetic --load-weights short
}

@test "what to train on must be said, once" {
    plan p.json
    fails 2 "--data FILE" "$RECKON" run p.json
    fails 2 "exclude" "$RECKON" run p.json --synthetic --data x
    fails 2 "absent.u16" "$RECKON" run p.json --data absent.u16
    fails 2 "--checkpoint DIR" "$RECKON" run p.json --synthetic --resume
    fails 2 "--checkpoint DIR" "$RECKON" run p.json --synthetic --checkpoint-every 3 --nproc 1
    fails 2 "--load-weights" "$RECKON" run p.json --synthetic --resume --checkpoint c --load-weights w
    fails 2 "--lr-min" "$RECKON" run p.json --synthetic --lr 1e-4 --lr-min 1e-3
    fails 2 "routing" "$RECKON" run p.json --synthetic --routing sideways
    fails 2 "steps" "$RECKON" run p.json --synthetic --steps 0
}

@test "a plan for other ranks says how to start it" {
    plan p.json pp=2 d=2
    fails 2 "reckon run p.json --nproc 4" "$RECKON" run p.json --synthetic
    fails 2 "for 4 ranks" "$RECKON" run p.json --synthetic --nproc 2
    RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29999 \
        fails 2 "leave --nproc out" "$RECKON" run p.json --synthetic --nproc 4
}

@test "broken plans" {
    plan p.json
    fails 2 "absent.json" "$RECKON" run absent.json --synthetic
    head -c 400 p.json > cut.json
    fails 2 "cut.json" "$RECKON" run cut.json --synthetic
    sed 's/"micro_batch_tokens": 64/"micro_batch_tokens": -64/' p.json > negative.json
    run ! cmp -s p.json negative.json
    fails 2 "negative.json" "$RECKON" run negative.json --synthetic
    sed 's/"micro_batch_tokens": 64/"micro_batch_tokens": NaN/' p.json > nan.json
    fails 2 "nan.json" "$RECKON" run nan.json --synthetic
    sed '0,/{/s//{ "surprise": 1,/' p.json > unknown.json
    fails 2 "surprise" "$RECKON" run unknown.json --synthetic
    sed 's/"micro_batch_tokens": 64/"micro_batch_tokens": 32/' p.json > contradicts.json
    fails 2 "contradicts.json" "$RECKON" run contradicts.json --synthetic
    : > empty.json
    fails 2 "empty.json" "$RECKON" run empty.json --synthetic
    head -c 5000 /dev/urandom > noise.json
    fails 2 "noise.json" "$RECKON" run noise.json --synthetic
}

@test "a model without a forward is refused by name" {
    sed 's/"tie_word_embeddings"/"attention_bias_": 0, "tie_word_embeddings"/' "$SOURCE/examples/models/glm4-moe-cpu-tiny.json" \
        | python3 -c 'import json, sys; d = json.load(sys.stdin); d["topk_method"] = "noaux_tc"; print(json.dumps(d))' > biased.json
    "$MAKE_PLAN" biased.json > p.json
    fails 2 "correction bias" "$RECKON" run p.json --synthetic
    "$MAKE_PLAN" "$SOURCE/examples/models/olmoe-cpu-tiny.json" backend=cuda type=bf16 > gpu.json
    run -6 "$RECKON" run gpu.json --synthetic
}

@test "broken data" {
    plan p.json
    : > empty.u16
    fails 2 "empty.u16" "$RECKON" run p.json --data empty.u16
    head -c 20001 /dev/zero > odd.u16
    fails 2 "odd.u16" "$RECKON" run p.json --data odd.u16
    head -c 100 /dev/zero > short.u16
    fails 2 "65" "$RECKON" run p.json --data short.u16
    # Token 300 at place 1,000; the vocabulary is 260.
    { head -c 2000 /dev/zero; printf '\054\001'; head -c 2000 /dev/zero; } > outside.u16
    run --separate-stderr -2 "$RECKON" run p.json --data outside.u16 --steps 20
    [[ $stderr == *"300"* && $stderr == *"1000"* && $stderr == *"260"* ]]
    mkdir folder.u16
    fails 2 "folder.u16" "$RECKON" run p.json --data folder.u16
}

@test "a token outside the vocabulary ends all ranks" {
    plan p.json ep=2 d=2
    { head -c 2000 /dev/zero; printf '\054\001'; head -c 2000 /dev/zero; } > outside.u16
    run --separate-stderr "$RECKON" run p.json --nproc 2 --data outside.u16 --steps 20
    [ "$status" -eq 2 ] || [ "$status" -eq 7 ]
    [[ $stderr == *"outside.u16"* && $stderr == *"300"* ]]
}

@test "checkpoint, interrupt and resume" {
    plan p.json pp=2 ep=2 d=2
    "$RECKON" run p.json --nproc 4 --synthetic --steps 8 --save-final whole > /dev/null
    "$RECKON" run p.json --nproc 4 --synthetic --steps 5 --checkpoint "check points" --checkpoint-every 2 > /dev/null
    fails 2 "--resume" "$RECKON" run p.json --nproc 4 --synthetic --steps 8 --checkpoint "check points"
    run "$RECKON" run p.json --nproc 4 --synthetic --steps 8 --checkpoint "check points" --resume --save-final resumed
    [ "$status" -eq 0 ]
    [[ $output == *"resumed from check points after step 5"* ]]
    cmp whole resumed
    # Nothing is left to do: that is said, and the run that did nothing is not the one that compare means.
    newest=$("$RECKON" compare | head -n 1)
    run "$RECKON" run p.json --nproc 4 --synthetic --steps 8 --checkpoint "check points" --resume
    [[ $output == *"8 steps are done already, of the 8 that --steps asks for: nothing to do"* ]]
    [ "$("$RECKON" compare | head -n 1)" = "$newest" ]
    "$RECKON" run p.json --nproc 4 --synthetic --steps 100000 --checkpoint other > interrupted.log 2>&1 &
    local process=$!
    while ! grep -q '^ *3 ' interrupted.log; do sleep 0.1; done
    kill -INT $process
    local code=0
    wait $process || code=$?
    [ "$code" -eq 130 ]
    [ -s other/latest ]
    "$RECKON" db list runs | grep -q interrupted
}

@test "a damaged checkpoint is refused with the file's name" {
    plan p.json
    "$RECKON" run p.json --synthetic --steps 2 --checkpoint c > /dev/null
    printf 'x' | dd of=c/step-00000002/rank-00000.bin bs=1 seek=9000 conv=notrunc status=none
    run --separate-stderr -1 "$RECKON" run p.json --synthetic --steps 3 --checkpoint c --resume
    [[ $stderr == *"rank-00000.bin"* ]]
    truncate -s 5000 c/step-00000002/rank-00000.bin
    run --separate-stderr -1 "$RECKON" run p.json --synthetic --steps 3 --checkpoint c --resume
    [[ $stderr == *"truncated"* ]]
}

@test "a killed rank ends the run with 7 and is named" {
    plan p.json pp=2 ep=2 d=2
    "$RECKON" run p.json --nproc 4 --synthetic --steps 100000 > killed.log 2>&1 &
    local process=$!
    while ! grep -q '^ *3 ' killed.log; do sleep 0.1; done
    local victim
    # The youngest child is the last rank.
    victim=$(awk -v parent=$process '{ pid = $1; sub(/^.*\) /, ""); if ($2 == parent && pid > last) last = pid }
        END { print last }' /proc/[0-9]*/stat 2> /dev/null)
    kill -KILL "$victim"
    local code=0
    wait $process || code=$?
    [ "$code" -eq 7 ]
    grep -q "rank 3" killed.log
    "$RECKON" db list runs | grep -q failed
}

@test "a locked or damaged database ends with 8 before any step" {
    plan p.json
    mkdir -p "$XDG_DATA_HOME/reckon"
    echo "not a database, but long enough to be looked at" > "$XDG_DATA_HOME/reckon/reckon.db"
    run --separate-stderr -8 "$RECKON" run p.json --synthetic --steps 2
    [ "$output" = "" ]
    [[ $stderr == *"reckon.db"* ]]
    "$RECKON" run p.json --synthetic --steps 2 --no-store > /dev/null
}

@test "a locked database ends all ranks with 8" {
    plan p.json ep=2 d=2
    "$RECKON" run p.json --nproc 2 --synthetic --steps 2 > /dev/null
    { echo "BEGIN EXCLUSIVE; SELECT 'locked';"; sleep 20; } | sqlite3 "$XDG_DATA_HOME/reckon/reckon.db" > locked &
    local process=$!
    while ! grep -q locked locked; do sleep 0.1; done
    run --separate-stderr -8 "$RECKON" run p.json --nproc 2 --synthetic --steps 2 --deadline 6
    [ "$output" = "" ]
    [[ $stderr == *"lock"* ]]
    kill $process 2> /dev/null || true
    wait $process 2> /dev/null || true
}

@test "a database that is locked for a while loses no step of a run under way" {
    plan p.json batch=64
    "$RECKON" run p.json --synthetic --steps 100000 --deadline 0.9 > steps.log 2> messages.log &
    local process=$!
    while ! grep -q '^ *20 ' steps.log; do sleep 0.1; done
    { echo "BEGIN EXCLUSIVE; SELECT 'locked';"; sleep 5; } | sqlite3 "$XDG_DATA_HOME/reckon/reckon.db" > locked
    grep -q "kept in memory" messages.log
    kill -INT $process
    local code=0
    wait $process || code=$?
    [ "$code" -eq 130 ]
    local printed
    printed=$(grep -c '^ *[0-9][0-9]* ' steps.log)
    [ "$(sqlite3 "$XDG_DATA_HOME/reckon/reckon.db" 'SELECT count(*) FROM run_step')" -eq "$printed" ]
}

@test "dropless repeats the step with larger buffers and says so" {
    plan p.json ep=2 d=2 capacity=1
    run --separate-stderr "$RECKON" run p.json --nproc 2 --synthetic --steps 3 --dropless
    [ "$status" -eq 0 ]
    [[ $stderr == *"capacity factor"* ]]
    [[ $output == *"more than planned"* ]]
    run --separate-stderr "$RECKON" run p.json --nproc 2 --synthetic --steps 3 --json
    python3 -c 'import json, sys
d = json.loads(sys.argv[1])
assert all(s["dropped"] > 0 for s in d["steps"])' "$output"
}

@test "every routing runs; uniform is perfectly balanced" {
    plan p.json ep=2 d=2
    for routing in learned random uniform; do
        "$RECKON" run p.json --nproc 2 --synthetic --steps 2 --routing $routing > $routing.log
    done
    grep -q ' 1\.000' uniform.log
}

@test "two processes started by hand find each other" {
    plan p.json ep=2 d=2
    local port=$((20000 + RANDOM % 20000))
    "$RECKON" run p.json --synthetic --steps 2 --rank 1 --world 2 --master 127.0.0.1 --port $port > other.log 2>&1 &
    local process=$!
    run "$RECKON" run p.json --synthetic --steps 2 --rank 0 --world 2 --master 127.0.0.1 --port $port
    wait $process
    [ "$status" -eq 0 ]
    [[ $output == *"run 1 is stored"* ]]
}

@test "ranks started by hand with other options are refused before any step" {
    plan p.json ep=2 d=2
    tokens 20000 text.u16
    # Left as it is, each of these would let one rank compute, write or wait for what the other does not.
    local differing
    while read -r -a differing; do
        local port=$((20000 + RANDOM % 20000)) code=0
        "$RECKON" run p.json --steps 2 --rank 1 --world 2 --master 127.0.0.1 --port $port "${differing[@]}" \
            > other.log 2>&1 &
        local process=$!
        run --separate-stderr "$RECKON" run p.json --synthetic --steps 2 --rank 0 --world 2 --master 127.0.0.1 --port $port
        wait $process || code=$?
        [ "$status" -eq 2 ] && [ "$code" -eq 2 ] || { echo "${differing[*]}: $status and $code"; return 1; }
        [[ $stderr == *"other flags"* ]]
    done <<'END'
--data text.u16
--synthetic --beta1 0.8
--synthetic --beta2 0.8
--synthetic --eps-adam 1e-6
--synthetic --init-std 0.1
--synthetic --lr-min 1e-5
--synthetic --lr-warmup 1
--synthetic --lr-decay cosine
--synthetic --lr-decay-steps 7
--synthetic --checkpoint c
--synthetic --save-weights w
--synthetic --save-final w
--synthetic --dump-gradients g
--synthetic --poison
END
    # What is a rank's own may differ.
    local port=$((20000 + RANDOM % 20000))
    "$RECKON" run p.json --synthetic --steps 2 --rank 1 --world 2 --master 127.0.0.1 --port $port --no-store \
        --spill "$PWD" > other.log 2>&1 &
    local process=$!
    "$RECKON" run p.json --synthetic --steps 2 --rank 0 --world 2 --master 127.0.0.1 --port $port --dump-losses losses
    wait $process
}

# small FILE JSON... : a model of a few thousand parameters, with these members added.
small() {
    local name=$1
    shift
    printf '{"hidden_size": 16, "num_hidden_layers": 3, "vocab_size": 48, "max_position_embeddings": 64,
 "rope_theta": 10000, "rms_norm_eps": 1e-05, "hidden_act": "silu", "num_experts_per_tok": 2, %s}\n' "$*" > "$name"
}

# agrees MODEL.json : an independent forward and AdamW give what the run gave.
agrees() {
    "$MAKE_PLAN" "$1" tokens=32 seq=16 batch=64 pp=1 ep=2 d=2 > plan.json
    "$RECKON" run plan.json --nproc 2 --synthetic --steps 1 --init-std 0.2 --lr 0.01 --weight-decay 0.3 --save-weights w \
        --dump-losses losses --dump-gradients gradients --save-final final --no-store > /dev/null
    python3 "$SOURCE/tests/cli/reference.py" "$1" 32 16 2 w losses gradients final 0.01 0.3
}

@test "an independent forward and AdamW agree with the run: OLMoE" {
    small m.json '"model_type": "olmoe", "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 12,
        "num_experts": 8, "norm_topk_prob": false, "tie_word_embeddings": false'
    agrees m.json
}

@test "an independent forward and AdamW agree with the run: Qwen3-MoE" {
    small m.json '"model_type": "qwen3_moe", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "intermediate_size": 24, "moe_intermediate_size": 8, "num_experts": 8, "norm_topk_prob": true,
        "mlp_only_layers": [1], "decoder_sparse_step": 1, "tie_word_embeddings": true'
    agrees m.json
}

@test "an independent forward and AdamW agree with the run: GLM-4-MoE" {
    small m.json '"model_type": "glm4_moe", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "partial_rotary_factor": 1.0, "intermediate_size": 24, "moe_intermediate_size": 8, "n_routed_experts": 8,
        "n_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": true, "routed_scaling_factor": 1.5,
        "topk_method": "greedy", "n_group": 1, "topk_group": 1, "attention_bias": false, "use_qk_norm": true,
        "tie_word_embeddings": false'
    agrees m.json
}

@test "a terminal that goes away ends a run as Ctrl-C does, with its checkpoint" {
    plan p.json pp=1 ep=2 d=2
    for ranks in 2 1; do
        [ $ranks = 2 ] || plan p.json
        "$RECKON" run p.json --nproc $ranks --synthetic --steps 100000 --checkpoint "hung $ranks" > hung.log 2>&1 &
        local process=$!
        while ! grep -q '^ *2 ' hung.log; do sleep 0.1; done
        kill -HUP $process
        local code=0
        wait $process || code=$?
        [ $code -eq 130 ]
        [ -e "hung $ranks/latest" ]
    done
}

@test "no output may be a file that is read" {
    plan p.json
    tokens 40000 data.u16
    for option in --save-final --save-weights --dump-losses --dump-gradients; do
        for file in p.json data.u16; do
            fails 2 "$file: is input and output, and would be lost" "$RECKON" run p.json --data data.u16 --steps 1 $option $file
        done
    done
    fails 2 "p.json: is input and output" "$RECKON" simulate p.json --hardware b300 --trace ./p.json
    fails 2 "p.json: is input and output" "$RECKON" report p.json --out p.json
    cp "$SOURCE/examples/models/olmoe-cpu-tiny.json" m.json
    fails 2 "m.json: is input and output" "$RECKON" plan --model m.json --hardware b300 --gpus 1 --seq 128 \
        --global-batch 4Ki --out m.json
    cmp m.json "$SOURCE/examples/models/olmoe-cpu-tiny.json"
}
