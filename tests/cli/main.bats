#!/usr/bin/env bats
# The program around the verbs: help, options common to all, exit codes, output that cannot be written.
load common

@test "help lists every verb, and every verb has help" {
    run -0 "$RECKON" help
    [[ $output == *"Usage: reckon VERB [options]"* ]]
    verbs=$(sed -n '/^Verbs:/,/^$/p' <<<"$output" | awk 'NF > 1 { print $1 }')
    [ "$(wc -w <<<"$verbs")" -ge 3 ]
    for verb in $verbs; do
        run -0 "$RECKON" "$verb" --help
        [[ $output == "Usage: reckon $verb "* ]]
        [[ $output == *"Examples:"* ]]
        run -0 "$RECKON" help "$verb"
        [[ $output == "Usage: reckon $verb "* ]]
        [[ $output == *"--db FILE"* ]]
    done
}

@test "help options: --help, -h, --version" {
    run -0 "$RECKON" --help
    [[ $output == *"Verbs:"* ]]
    run -0 "$RECKON" -h
    run -0 "$RECKON" --version
    [[ $output =~ ^reckon\ [0-9]+\.[0-9]+\.[0-9]+\ \( ]]
}

@test "no verb is a mistake that shows the overview" {
    run -2 "$RECKON"
    [[ $output == *"Verbs:"* ]]
}

@test "unknown verbs and options suggest the nearest" {
    fails 2 "'tokenise' is not a verb; did you mean 'tokenize'?" "$RECKON" tokenise
    fails 2 "'zebra' is not a verb; \`reckon help\` lists them" "$RECKON" zebra
    fails 2 "'zebra' is not a verb" "$RECKON" help zebra
    fails 2 "--jsn: unknown option of 'doctor'; did you mean --json?" "$RECKON" doctor --jsn
    fails 2 "--db: needs a value" "$RECKON" doctor --db
    fails 2 "--db: the file name is empty" "$RECKON" doctor --db ''
    fails 2 "unexpected argument 'x'" "$RECKON" doctor x
}

@test "a full disk is an error" {
    run -1 --separate-stderr bash -c "'$RECKON' help > /dev/full"
    [[ $stderr == *"standard output: cannot write: No space left on device"* ]]
}

@test "a closed standard output is an error, and no file takes its place" {
    run -1 --separate-stderr bash -c "'$RECKON' help >&-"
    [[ $stderr == *"standard output: cannot write"* ]]
    printf text > in
    run -1 bash -c "'$RECKON' tokenize in --out out.u16 >&-"
    [ "$(stat -c %s out.u16)" -eq 8 ]
}

@test "a reader that goes away ends the program as other programs end" {
    run -0 bash -c "'$RECKON' help | head -n 1"
    run -141 bash -c "set -o pipefail; { sleep 0.2; '$RECKON' help --manual; } | true"
    [ "$output" = "" ]
}

@test "completion is a bash script that completes verbs, options and choices" {
    "$RECKON" help --completion bash > completion
    bash -n completion
    complete_words() {
        bash -c '. ./completion; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _reckon; echo "${COMPREPLY[*]}"' bash "$@"
    }
    [ "$(complete_words reckon tok)" = tokenize ]
    [ "$(complete_words reckon tokenize --form)" = --format ]
    [[ "$(complete_words reckon tokenize --format '')" == *"llmc"* ]]
    [[ "$(complete_words reckon doctor --)" == *"--db"* ]]
    if command -v shellcheck > /dev/null; then
        shellcheck -s bash completion
    fi
}

@test "the manual page is roff without complaints" {
    "$RECKON" help --manual > reckon.1
    [[ $(head -n 1 reckon.1) == ".TH reckon 1"* ]]
    if command -v man > /dev/null && man --version > /dev/null 2>&1 && command -v groff > /dev/null; then
        run -0 groff -man -Tascii -ww -b reckon.1
    fi
}
