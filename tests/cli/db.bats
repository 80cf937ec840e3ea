#!/usr/bin/env bats
# shellcheck disable=SC2154 # bats sets stderr
# The database from outside: listing, showing, moving and checking it, and files that are no sound database.
load common

# A database with a row of every table.
full() {
    run -0 "$RECKON" db import "$SOURCE/tests/db/export.jsonl"
    [[ $output == *"59 rows imported (jsonl), 0 of them known already" ]]
}

python_json() {
    python3 -c "import json, sys; d = json.load(sys.stdin); $1"
}

@test "without a database says how to get one" {
    for action in list check export "show run 1"; do
        # shellcheck disable=SC2086
        fails 4 "run \`reckon calibrate\` first" "$RECKON" db $action
    done
    [ ! -e "$XDG_DATA_HOME" ]
}

@test "lists campaigns, plans and runs" {
    full
    run -0 --separate-stderr "$RECKON" db list
    [[ $output == *"Campaigns (2)"* && $output == *"Plans (1)"* && $output == *"Runs (1)"* ]]
    run -0 "$RECKON" db list plans
    [[ $output == *"tiny"* && $output != *"Campaigns"* ]]
    "$RECKON" db list --json | python_json 'assert [c["measurements"] for c in d["campaigns"]] == [3, 6]
assert d["plans"][0]["refused"] == 20 and d["runs"][0]["steps"] == 5'
}

@test "shows a campaign with its machine and every measurement" {
    full
    run -0 "$RECKON" db show campaign 1
    [[ $output == *"Example GPU, 141.00 GiB, GPU-0"* ]]
    [[ $output == *"driver 580.1"* ]]
    [[ $output == *"m=192 n=128 k=256"* ]]
    [[ $output == *"failed"* && $output == *"log-log"* ]]
    "$RECKON" db show campaign 1 --json | python_json 'assert len(d["rows"]) == 7 and d["fits"][0]["train"] == 1
assert d["rows"][0]["dims"][:3] == [64, 128, 256] and d["rows"][6]["median_seconds"] is None'
}

@test "shows a plan with its refused candidates and the sources of its terms" {
    full
    run -0 "$RECKON" db show plan 1
    [[ $output == *"refused    PP 4, EP 1"*"memory: need 3.5, have 2.25 GiB; PP 8"* ]]
    [[ $output == *"hardware/b300.json"* ]]
    run -0 "$RECKON" db show plan 1 --document
    [ "$output" = $'{\n  "a": "b\\n"\n}' ]
    "$RECKON" db show plan 1 --json | python_json 'assert d["candidates"][2]["need"] == 3.5
assert d["terms"][1]["origin"] == "published"'
}

@test "shows a run with steps, ops, memory and the comparison" {
    full
    run -0 "$RECKON" db show run 1
    [[ $output == *"4.90000"* && $output == *"traced"* ]]
    [[ $output == *"dispatch"* && $output == *"activations"* && $output == *"-1.3 %"* ]]
    "$RECKON" db show run 1 --json | python_json 'assert len(d["steps"]) == 5 and d["steps"][3]["loss"] is None
assert d["memory"][0]["allocated_bytes"] == 5000 and d["comparison"][0]["within"]'
}

@test "export and import go round without loss, as JSONL and as CSV" {
    full
    "$RECKON" db export | cmp - "$SOURCE/tests/db/export.jsonl"
    run -0 "$RECKON" db export --out copy.jsonl
    cmp copy.jsonl "$SOURCE/tests/db/export.jsonl"
    run -0 "$RECKON" db export --format csv --out folder
    [ "$(head -1 folder/sample.csv)" = "measurement_id,ordinal,seconds,throttled" ]
    run -0 "$RECKON" db import folder --db other.db
    "$RECKON" db export --db other.db | cmp - "$SOURCE/tests/db/export.jsonl"
    fails 2 "not empty" "$RECKON" db export --format csv --out folder
    fails 2 "--out DIR" "$RECKON" db export --format csv
    fails 2 "already in" "$RECKON" db import copy.jsonl --db other.db
    fails 2 "copy.jsonl" "$RECKON" db import copy.jsonl.none --db other.db
    fails 2 "save it as a file first" "$RECKON" db import /dev/null --db other.db
}

@test "a cut or changed export is refused whole" {
    head -n 30 "$SOURCE/tests/db/export.jsonl" >cut.jsonl
    fails 2 "cut short after line 30" "$RECKON" db import cut.jsonl
    sed 's/"grad_norm":1.25/"grad_norm":"x"/' "$SOURCE/tests/db/export.jsonl" >changed.jsonl
    fails 2 "column grad_norm: \"x\" is not a number" "$RECKON" db import changed.jsonl
    run -0 "$RECKON" db list
    [[ $output == *"Campaigns (0)"* ]]
}

@test "figures of nccl-tests and nvbandwidth are imported with their origin" {
    cat >nccl.json <<'JSON'
{"version":2,"args":["all_gather_perf"],"nccl_version":22903,"config":{"nthreads":1,"ngpus":8,"devices":[]},
 "results":[{"size":1024,"count":256,"type":"float","redop":"none","root":"-1",
 "out_of_place":{"time":12.5,"alg_bw":0.08,"bus_bw":0.07,"nwrong":0},"in_place":null}]}
JSON
    run -0 "$RECKON" db import nccl.json
    cat >nv.json <<'JSON'
{"nvbandwidth":{"Driver Version":"580","testcases":[{"name":"host_to_device_memcpy_ce","bandwidth_matrix":[["55.0"]]}]}}
JSON
    fails 2 "--buffer-size" "$RECKON" db import nv.json
    run -0 "$RECKON" db import nv.json --buffer-size 512MiB --json
    "$RECKON" db list --json | python_json 'assert {c["origin"] for c in d["campaigns"]} == {"imported"}
assert {c["tool"].split()[0] for c in d["campaigns"]} == {"nccl-tests", "nvbandwidth"}'
    run -0 "$RECKON" db show campaign 2
    [[ $output == *"55 GB/s"* ]]
}

@test "check says sound, and finds damage" {
    full
    run -0 "$RECKON" db check
    [[ $output == *"reckon.db: sound" ]]
    "$RECKON" db check --json | python_json 'assert d == {"sound": True, "findings": []}'
    file=$XDG_DATA_HOME/reckon/reckon.db
    at=$(grep -abo gemm_forward "$file" | head -1 | cut -d: -f1)
    dd if=/dev/urandom of="$file" bs=4096 seek=$((at / 4096)) count=1 conv=notrunc status=none
    run --separate-stderr -8 "$RECKON" db check
    [[ $output == *"damage: "*"not sound"* ]]
    [[ $stderr == *"restore a backup"* ]]
    run -8 "$RECKON" db check --json
}

@test "what is no database ends with code 8 and its name" {
    mkdir folder.db
    fails 8 "folder.db: is a folder" "$RECKON" db list --db folder.db
    printf 'no database at all%.0s' {1..99} >text.db
    fails 8 "text.db: is not a Reckon database" "$RECKON" db list --db text.db
    fails 8 "text.db: is not a Reckon database" "$RECKON" db import "$SOURCE/tests/db/export.jsonl" --db text.db
    full
    size=$(stat -c %s "$XDG_DATA_HOME/reckon/reckon.db")
    truncate -s $((size / 2)) "$XDG_DATA_HOME/reckon/reckon.db"
    fails 8 "damaged" "$RECKON" db list
}

@test "wrong words are refused with the right ones" {
    full
    fails 2 "is not list, show, export, import or check" "$RECKON" db remove
    fails 2 "usage: reckon db show campaign|plan|run ID" "$RECKON" db show run
    fails 2 "is not campaign, plan or run" "$RECKON" db show host 1
    fails 2 "no run 7" "$RECKON" db show run 7
    fails 2 "db show: ID" "$RECKON" db show run x
    fails 2 "is not campaigns, plans, runs or tables" "$RECKON" db list hosts
    fails 2 "only plans have one" "$RECKON" db show run 1 --document
}

@test "an export that cannot be written is an error" {
    full
    [ -e /dev/full ] || skip "no /dev/full"
    run --separate-stderr -1 bash -c "'$RECKON' db export >/dev/full"
    [ "$stderr" != "" ]
    fails 1 "none" "$RECKON" db export --out none/x.jsonl
}

@test "lists the tables, and keeps control characters from the terminal" {
    full
    run -0 "$RECKON" db list tables
    [[ $output == *"measurement             10"* && $output == *"run_step                 5"* ]]
    "$RECKON" db list tables --json | python_json 'assert d["sample"] == 9 and len(d) == 21'
    sed 's/"tool":"reckon"/"tool":"a\\u001b[31mb"/' "$SOURCE/tests/db/export.jsonl" >escape.jsonl
    run -0 "$RECKON" db import escape.jsonl --db escape.db
    run -0 "$RECKON" db list --db escape.db
    [[ $output == *"a?[31mb"* && $output != *$'\e'* ]]
}
