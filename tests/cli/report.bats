#!/usr/bin/env bats
# reckon report from outside.
# shellcheck disable=SC2154 # bats sets output and stderr
load common

plan() {
    local name=$1
    shift
    "$MAKE_PLAN" "$SOURCE/examples/models/olmoe-cpu-tiny.json" "$@" > "$name"
}

# The page opens and closes its elements in order, has no script, asks for nothing from elsewhere.
good_page() {
    python3 - "$1" <<'PYTHON'
import re, sys
from html.parser import HTMLParser

class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.count = [], {}
    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag != 'meta':
            self.open.append(tag)
    def handle_startendtag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

text = open(sys.argv[1], encoding='utf-8').read()
page = Page()
page.feed(text)
assert page.open == [], page.open
assert 'script' not in page.count and 'link' not in page.count and 'img' not in page.count
assert not re.search(r'https?:|url\((?!#)|nan[,"]|inf[,"]', text)
assert page.count['svg'] >= page.count['table'] >= 4
PYTHON
}

@test "a run becomes one page" {
    plan p.json pp=2 ep=2 d=2
    "$RECKON" run p.json --nproc 4 --synthetic --steps 7 > /dev/null
    run --separate-stderr -0 "$RECKON" report --out page.html --json
    good_page page.html
    python3 -c 'import json, sys
d = json.loads(sys.argv[1])
assert d["run"] == 1 and d["out"] == "page.html" and d["measured_seconds"] > 0
assert d["errors"]["op"]["count"] > 5 and d["errors"]["op"]["median"] >= 0' "$output"
    for part in "run 1 against plan 1" "From the predicted to the measured step" "Every kind of op" "rank correlation" \
        "Memory by owner" "rank 3" "Loss and time of each step" "Where the prices come from"; do
        grep -q "$part" page.html || { echo "no $part"; return 1; }
    done
    "$RECKON" report 1 > again.html
    cmp page.html again.html
}

@test "a plan becomes one page, from its file and from the database" {
    "$RECKON" plan --model "$SOURCE/examples/models/report-8l-n32.json" --hardware b300 --gpus 4 --seq 8192 \
        --global-batch 512Ki --out plan.json > /dev/null
    run -0 "$RECKON" report plan.json --out page.html
    [[ $output == *"page.html: "*"open it in a browser" ]]
    good_page page.html
    grep -q "Timeline of the predicted step" page.html
    grep -q "refused" page.html
    if [ -e "$XDG_DATA_HOME/reckon/reckon.db" ]; then
        "$RECKON" report --plan 1 --out stored.html
        good_page stored.html
        fails 2 "no plan 77" "$RECKON" report --plan 77
    fi
}

@test "a run that was cut still has a page, without a comparison" {
    plan p.json
    "$RECKON" run p.json --synthetic --steps 1 --trace-steps 0 > /dev/null
    run -0 "$RECKON" report --out page.html
    good_page page.html
}

@test "wrong words, missing files and full disks" {
    fails 4 "no database there" "$RECKON" report
    fails 2 "none.json" "$RECKON" report none.json
    printf '{"a": 1}' > broken.json
    fails 2 "broken.json" "$RECKON" report broken.json
    fails 2 "not two of them" "$RECKON" report 1 --plan 1
    fails 2 "runs are numbered from 1" "$RECKON" report 0
    fails 2 "name the page with --out" "$RECKON" report --json
    plan p.json
    fails 1 "none/page.html" "$RECKON" report p.json --out none/page.html
    "$RECKON" run p.json --synthetic --steps 1 --trace-steps 0 > /dev/null
    fails 2 "no run 9" "$RECKON" report 9
}
