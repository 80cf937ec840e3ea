# shellcheck shell=bash disable=SC2154
# Loaded by every .bats file: each test has an empty folder of its own, which also holds its database.
bats_require_minimum_version 1.5.0

setup() {
    : "${RECKON:?set RECKON to the program, or run these tests through ctest}"
    RECKON=$(realpath "$RECKON")
    SOURCE=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    export SOURCE
    export XDG_DATA_HOME=$BATS_TEST_TMPDIR/data
    export NO_COLOR=1
    unset RECKON_DATA
    mkdir "$BATS_TEST_TMPDIR/work"
    cd "$BATS_TEST_TMPDIR/work" || return 1
}

# fails CODE PART WORD... : the command ends with this code, says PART on standard error and nothing on standard output.
fails() {
    local code=$1 part=$2
    shift 2
    # bats sets output and stderr.
    run --separate-stderr -"$code" "$@"
    [ "$output" = "" ] || { echo "standard output: $output"; return 1; }
    [[ $stderr == *"$part"* ]] || { echo "standard error: $stderr"; return 1; }
}
