#!/usr/bin/env bats
# The examples of docs/verbs.md are commands that work. Each ```sh block is run in turn in one folder; a block after the
# line <!-- exit N --> must end with that code, one after <!-- not run: why --> is only read.
load common

blocks() {
    awk -v folder="$1" '
        /^## `reckon / { verb = $3; sub(/`$/, "", verb) }
        /^<!-- exit [0-9]+ -->$/ { code = $3 }
        /^<!-- not run: / { skip = 1 }
        !/^```/ { if (inside && !skip) print > file; next }
        inside { inside = 0; if (!skip) close(file); skip = 0; code = 0; next }
        /^```sh$/ { inside = 1; file = sprintf("%s/%03d-%s-%d", folder, ++count, verb, code); next }
        { inside = 1; if (!skip) { skip = 1 } }' "$SOURCE/docs/verbs.md"
}

@test "every verb has a section, an example there, and help" {
    mkdir blocks
    blocks blocks
    for verb in $("$RECKON" help | sed -n '/^Verbs:/,/^$/p' | awk 'NF > 1 { print $1 }'); do
        grep -q "^## \`reckon $verb\`" "$SOURCE/docs/verbs.md" || { echo "no section for $verb"; return 1; }
        ls blocks/*-"$verb"-* > /dev/null 2>&1 || { echo "no example of $verb"; return 1; }
    done
}

@test "every example does what it says" {
    mkdir blocks bin work
    blocks blocks
    ln -s "$RECKON" bin/reckon
    export PATH=$PWD/bin:$PATH
    ln -s "$SOURCE/examples" "$SOURCE/hardware" work/
    for block in blocks/*; do
        expected=${block##*-}
        code=0
        # The tests must pass on a machine with other work to do.
        sed -i 's/^reckon calibrate --quick$/& --force/' "$block"
        (cd work && bash -euo pipefail "../$block") > out 2> err || code=$?
        if [[ $block == *-doctor-* && $code -eq 6 ]]; then code=0; fi
        if [ "$code" -ne "$expected" ]; then
            echo "$block ended with $code, not $expected:"
            cat "$block" out err
            return 1
        fi
    done
}
