#!/usr/bin/env bats
load common

# The machine that runs the tests may be busy: both verdicts are right, what is printed must fit them.
verdict() {
    run --separate-stderr "$RECKON" doctor --seconds 0.1 "$@"
    [ "$status" -eq 0 ] || [ "$status" -eq 6 ]
}

@test "prints the machine and a verdict that is the exit code" {
    verdict
    [[ $output == *"Processor   "* ]]
    [[ $output == *"Memory      "* ]]
    [[ $output == *"OpenBLAS "* ]]
    if [ "$status" -eq 6 ]; then
        [[ $output == *"Unfit: "* ]]
        [[ $stderr == *"this machine is unfit: "* ]]
    else
        [[ $output == *"Fit: "* ]]
        [ "$stderr" = "" ]
    fi
}

@test "--json is one valid JSON value with the same verdict" {
    verdict --json
    fit=$(python3 -c 'import json, sys; d = json.load(sys.stdin)
assert d["host"]["threads"] >= 1 and d["host"]["memory_bytes"] > 0
assert all(f["level"] in ("good", "note", "warning", "unfit") for f in d["findings"])
assert d["fit"] == all(f["level"] != "unfit" for f in d["findings"])
print(d["fit"])' <<<"$output")
    if [ "$status" -eq 6 ]; then [ "$fit" = False ]; else [ "$fit" = True ]; fi
}

@test "warns of a database and offloaded bytes that would stay in memory" {
    [ "$(stat -f -c %T /dev/shm)" = tmpfs ] || skip "/dev/shm is no tmpfs"
    verdict --db /dev/shm/none/reckon.db --spill /dev/shm
    [[ $output == *"measurements are lost at the next start"* ]]
    [[ $output == *"bytes offloaded there stay in memory"* ]]
}

@test "sees a quota that the processors do not show" {
    verdict --seconds 0.05
    usable=$(sed -n 's/.* \([0-9]*\) processors may be used/\1/p' <<<"$output")
    [ -z "$usable" ] || [ "$usable" -le "$(nproc)" ]
}

@test "refuses wrong values" {
    fails 2 "--seconds: 0 is outside" "$RECKON" doctor --seconds 0
    fails 2 "--seconds: 'soon' is not a number" "$RECKON" doctor --seconds soon
}
