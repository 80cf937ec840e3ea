#!/usr/bin/env bats
load common

@test "every format holds the bytes" {
    printf 'A\n\377' > in
    run -0 "$RECKON" tokenize in --out out.u16
    [ "$output" = "out.u16: 3 tokens of 2 bytes (raw), vocabulary 256" ]
    [ "$(od -An -tu2 out.u16 | xargs)" = "65 10 255" ]
    "$RECKON" tokenize in --out out.u32
    [ "$(od -An -tu4 out.u32 | xargs)" = "65 10 255" ]
    "$RECKON" tokenize in --out out.bin --format llmc
    [ "$(stat -c %s out.bin)" -eq 1030 ]
    [ "$(od -An -td4 -N 16 out.bin | xargs)" = "20240520 1 3 0" ]
    [ "$(od -An -tu2 -j 1024 out.bin | xargs)" = "65 10 255" ]
    "$RECKON" tokenize in --out out.npy
    [ "$(od -An -tu2 -j 128 out.npy | xargs)" = "65 10 255" ]
    [[ $(head -c 127 out.npy) == *"'descr': '<u2', 'fortran_order': False, 'shape': (3,)"* ]]
    "$RECKON" tokenize in --out wide.npy --format npy-u32
    [ "$(od -An -tu4 -j 128 wide.npy | xargs)" = "65 10 255" ]
}

@test "several inputs, standard input and an end token" {
    printf 'ab' > a
    run -0 bash -c "printf c | '$RECKON' tokenize a - a --out out.u16 --end-token 256"
    [[ $output == *"8 tokens of 2 bytes (raw), vocabulary 257"* ]]
    [ "$(od -An -tu2 out.u16 | xargs)" = "97 98 256 99 256 97 98 256" ]
}

@test "the example text is 1 MB or more and tokenizes" {
    run -0 "$RECKON" tokenize "$SOURCE/examples/text/kjv.txt" --out kjv.u16 --json
    tokens=$(sed -n 's/.*"tokens": \([0-9]*\).*/\1/p' <<<"$output")
    [ "$tokens" -ge 1000000 ]
    [ "$(stat -c %s kjv.u16)" -eq $((2 * tokens)) ]
    sum=$(sed -n 's/.*`\([0-9a-f]\{64\}\)`.*/\1/p' "$SOURCE/examples/text/README.md")
    [ "$(sha256sum < "$SOURCE/examples/text/kjv.txt" | cut -d' ' -f1)" = "$sum" ]
}

@test "names with quotes stay valid JSON" {
    printf x > in
    run -0 "$RECKON" tokenize in --out 'a"b.u16' --json
    [[ $output == *'"file": "a\"b.u16"'* ]]
}

@test "mistakes leave nothing behind" {
    printf text > in
    fails 2 "say where to write with --out FILE" "$RECKON" tokenize in
    fails 2 "too few arguments" "$RECKON" tokenize --out x
    fails 2 "'u8' is not one of u16|u32|llmc|npy|npy-u32" "$RECKON" tokenize in --out x --format u8
    fails 2 "missing: cannot open" "$RECKON" tokenize in missing --out x
    fails 2 "cannot read: Is a directory" "$RECKON" tokenize . --out x
    fails 2 "there are no tokens" "$RECKON" tokenize /dev/null --out x
    fails 2 "is input and output" "$RECKON" tokenize in --out in
    fails 2 "does not fit into 2 bytes" "$RECKON" tokenize in --out x --end-token 65536
    fails 2 "outside 0 to 2147483647" "$RECKON" tokenize in --out x.u32 --end-token 4Gi
    fails 1 "create its folder first" "$RECKON" tokenize in --out none/x
    fails 1 "/dev/full: cannot write: No space left" "$RECKON" tokenize in --out /dev/full
    fails 2 "must be a plain file" "$RECKON" tokenize in --out /dev/full --format npy
    [ "$(cat in)" = text ]
    [ "$(ls)" = in ]
}

@test "an old file survives a failure" {
    printf old > out.u16
    printf text > in
    fails 2 "missing: cannot open" "$RECKON" tokenize in missing --out out.u16
    [ "$(cat out.u16)" = old ]
}

@test "an interrupt leaves nothing behind" {
    mkfifo pipe
    "$RECKON" tokenize pipe --out out.u16 2> message 3>&- &
    reckon=$!
    exec 7> pipe
    printf text >&7
    sleep 0.3
    kill -INT "$reckon" || true
    # The shell starts background jobs with SIGINT ignored in some set-ups; SIGTERM means the same here.
    kill -TERM "$reckon" || true
    sleep 0.3
    exec 7>&-
    code=0
    wait "$reckon" || code=$?
    [ "$code" -eq 130 ]
    grep -q "interrupted; out.u16 was not written" message
    [ ! -e out.u16 ]
    [ "$(find . -name 'out*')" = "" ]
}
