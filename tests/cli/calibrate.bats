#!/usr/bin/env bats
load common

# A model small enough that all its cases take seconds.
small_model() {
    cat >small.json <<'END'
{"model_type": "olmoe", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
 "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "vocab_size": 64, "hidden_act": "silu",
 "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "max_position_embeddings": 64}
END
}

calibrate() {
    "$RECKON" calibrate --quick --force --backend cpu --model small.json --seq 16 --micro-batch 16 --db c.db "$@"
}

@test "measures every op kind of the programs and states the error of interpolation" {
    small_model
    run --separate-stderr -0 calibrate --ranks 2 --global-batch 64 --json
    python3 - "$output" <<'END'
import json, sqlite3, sys
summary = json.loads(sys.argv[1])
assert summary["measured"] == summary["cases"] > 50 and summary["wrong"] == 0
assert summary["held_out"] > 0 and summary["held_out_median_error"] >= 0
db = sqlite3.connect("c.db")
ops = {row[0] for row in db.execute("SELECT op FROM bench_case")}
for op in ("gemm_forward", "gemm_wgrad", "attention_backward", "dispatch", "combine", "reduce_scatter", "send", "receive",
           "adamw", "copy_d2h", "copy_h2d", "launch", "host_wait", "copy_both"):
    assert op in ops, op
ranks = db.execute("SELECT process, rank, device, cpu_list FROM campaign_rank ORDER BY rank").fetchall()
assert [r[:3] for r in ranks] == [(0, 0, "cpu"), (0, 1, "cpu")], ranks
assert all(r[3][0].isdigit() for r in ranks), ranks
for median, low, high in db.execute("SELECT median_seconds, low_seconds, high_seconds FROM measurement"):
    assert 0 < low <= median <= high
END
    run -0 "$RECKON" db check --db c.db
}

@test "an interrupt keeps what is done and --resume measures the rest alone" {
    small_model
    calibrate --ranks 2 --global-batch 64 2>log &
    calibration=$!
    for _ in $(seq 100); do
        cases=$(sqlite3 c.db 'SELECT count(*) FROM measurement' 2>/dev/null || echo 0)
        [ "${cases:-0}" -ge 5 ] && break
        sleep 0.1
    done
    pkill -INT -P "$calibration" 2>/dev/null || kill -INT "$calibration"
    status=0
    wait "$calibration" || status=$?
    [ "$status" -eq 130 ]
    grep -q "continue with --resume" log
    run --separate-stderr -0 calibrate --ranks 2 --global-batch 64 --resume --json
    [ "$(sqlite3 c.db 'SELECT count(*) FROM campaign_rank')" -eq 2 ]
    python3 -c 'import json, sys; s = json.loads(sys.argv[1]); assert s["skipped"] >= 5, s; assert s["measured"] + s["skipped"] == s["cases"]' "$output"
}

@test "refuses what does not fit, and names it" {
    small_model
    fails 2 "change --ranks, --seq or --global-batch" calibrate --ranks 2 --global-batch 17
    fails 2 "--quick and --full exclude each other" calibrate --full
    fails 2 "missing.json" "$RECKON" calibrate --quick --force --model missing.json --db c.db --ranks 1
    fails 2 "--micro-batch" "$RECKON" calibrate --quick --force --model small.json --micro-batch -5 --db c.db --ranks 1
}

@test "another machine's figures price a plan only when asked for, and say so" {
    small_model
    calibrate --ranks 2 --global-batch 64
    # The same figures, as if another machine had measured them.
    sqlite3 c.db "SELECT 'DROP TRIGGER ' || name || ';' FROM sqlite_master WHERE type = 'trigger'" | sqlite3 c.db
    sqlite3 c.db "UPDATE campaign SET machine_key = 'another', fingerprint = 'another'"
    plan=(plan --model small.json --gpus 2 --seq 16 --global-batch 64 --micro-batch 16 --backend cpu --db c.db)
    fails 4 "--transfer" "$RECKON" "${plan[@]}"
    run --separate-stderr -0 "$RECKON" "${plan[@]}" --transfer --json --out plan.json
    [[ $stderr == *"every figure is transferred"* ]]
    python3 - <<'END'
import json
terms = json.load(open("plan.json"))["terms"]
assert terms and all(term["origin"] == "transferred" for term in terms), terms
END
    run --separate-stderr -0 "$RECKON" simulate plan.json --hardware this --transfer --db c.db
    fails 4 "--transfer" "$RECKON" simulate plan.json --hardware this --db c.db
}
