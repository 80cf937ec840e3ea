#!/usr/bin/env bats
# The scripts say what they do and refuse what they do not know, without installing or building anything.
load common

@test "packages lists what is missing" {
    mkdir bin
    printf '#!/bin/sh\nfor last; do :; done\n[ "$last" = cmake ] || printf installed\n' > bin/dpkg-query
    printf '#!/bin/sh\ntouch installed-something\n' > bin/apt-get
    chmod +x bin/*
    run -0 env PATH="$PWD/bin:$PATH" "$SOURCE/scripts/packages" --list build
    [ "$output" = cmake ]
    [ ! -e installed-something ]
}

@test "packages installs only what is missing, and says so" {
    mkdir bin
    printf '#!/bin/sh\nfor last; do :; done\n[ "$last" = cmake ] || printf installed\n' > bin/dpkg-query
    printf '#!/bin/sh\necho "apt-get $*" >> log\n' > bin/apt-get
    printf '#!/bin/sh\nexec "$@"\n' > bin/sudo
    chmod +x bin/*
    run -0 --separate-stderr env PATH="$PWD/bin:$PATH" "$SOURCE/scripts/packages" test
    [ "$stderr" = "Packages: installing cmake" ]
    [ "$(cat log)" = "apt-get update
apt-get install --yes --no-install-recommends cmake" ]
}

@test "packages passes on why apt-get failed" {
    mkdir bin
    printf '#!/bin/sh\nprintf absent\n' > bin/dpkg-query
    printf '#!/bin/sh\necho "E: no route to host" >&2\nexit 100\n' > bin/apt-get
    printf '#!/bin/sh\nexec "$@"\n' > bin/sudo
    chmod +x bin/*
    run -1 --separate-stderr env PATH="$PWD/bin:$PATH" "$SOURCE/scripts/packages" build
    [[ $stderr == *"E: no route to host"* ]]
    [[ $stderr == *"install by hand: gcc cmake"* ]]
}

@test "without apt-get the packages are named" {
    mkdir bin
    for tool in sh sed dirname cat; do ln -s "$(command -v "$tool")" bin/; done
    run -1 --separate-stderr env PATH="$PWD/bin" "$SOURCE/scripts/packages" build
    [[ $stderr == *"has no apt-get"*"libgsl-dev"* ]]
}

@test "unknown words show the usage" {
    for script in packages quickstart test; do
        run -2 --separate-stderr "$SOURCE/scripts/$script" --frobnicate
        [[ $stderr == *"Usage: scripts/$script"* ]]
    done
}

@test "a picture holds the text, escaped" {
    run -0 "$SOURCE/scripts/picture" <<<'$ a <b> & c'
    [[ $output == "<svg "*'class="c"'*'$ a &lt;b&gt; &amp; c</text>'*"</svg>" ]]
}
