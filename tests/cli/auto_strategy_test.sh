#!/usr/bin/env bash
# "strategy": "auto" gives its memory back, a resumed run keeps the layout, and layers are recomputed where memory is short.
# Usage: auto_strategy_test.sh PROGRAM REPOSITORY
set -euo pipefail
tessera=$1
repository=$2
. "$repository"/tests/cli/runs_support.sh
prepare data
job auto 1e-3 4 "" ', "strategy": "auto"'

train auto.json --steps 1 > first.txt 2>&1 || fail "$(cat first.txt)"
grep -q "strategy auto: .* combinations" first.txt || fail "no plan: $(cat first.txt)"
python3 - first.txt <<'PY' || fail "memory: $(cat first.txt)"
import re, sys
found = re.search(r"memory of the largest rank (\d+) MiB, (\d+) MiB after", open(sys.argv[1]).read())
before, after = map(int, found.groups())
assert after < before, (before, after)
PY
layout() { grep "gpt-tiny of" "$1"; }

train auto.json --resume --steps 2 > kept.txt 2>&1 || fail "$(cat kept.txt)"
grep -q "strategy auto: the layout of auto/step_1 is kept" kept.txt || fail "not kept: $(cat kept.txt)"
if grep -q combinations kept.txt; then fail "planned again: $(cat kept.txt)"; fi
[ "$(layout first.txt)" = "$(layout kept.txt)" ] || fail "other layout: $(cat first.txt kept.txt)"

# Measured once, the ranks need not be measured at every start; a file of other ranks is refused.
"$tessera" launch -n 2 -- "$tessera" probe --quick -o pair.json > pair.txt
"$tessera" launch -n 1 -- "$tessera" probe --quick -o cluster.json > probe.txt
[ "$(status_of other.txt train auto.json --resume --replan --cluster-file cluster.json)" = 2 ] ||
  fail "a file of one rank: $(cat other.txt)"
grep -q "the hosts of 'cluster.json' have 1 ranks, those of this run 2" other.txt || fail "$(cat other.txt)"

# Another number of ranks needs another layout, and --replan asks for one.
ranks=1
train auto.json --resume --steps 3 --cluster-file cluster.json > alone.txt 2>&1 || fail "$(cat alone.txt)"
grep -q "was planned for 2 processes, this run has 1: planning anew" alone.txt ||
  fail "another number of ranks: $(cat alone.txt)"
grep -q "^resumed from auto/step_2" alone.txt || fail "not resumed: $(cat alone.txt)"
ranks=2
train auto.json --resume --replan --cluster-file pair.json > anew.txt 2>&1 || fail "$(cat anew.txt)"
grep -q "strategy auto: .* combinations" anew.txt || fail "--replan: $(cat anew.txt)"

# Quiet, nothing is said of the plan; the run trains all the same.
TESSERA_LOG=warning train auto.json --resume --replan --cluster-file pair.json --set steps=5 > quiet.txt 2>&1 || fail "$(cat quiet.txt)"
if grep -q "strategy auto" quiet.txt; then fail "not quiet: $(cat quiet.txt)"; fi
[ -d auto/step_5 ] || fail "quiet, it did not train: $(cat quiet.txt)"
# With too little memory for what layers keep, layers are recomputed, and losses are those of the plain run.
ranks=1
job plain 1e-3 2 "" ""
sed -i 's/"dropout": 0.1/"dropout": 0/; s/"batch": 8/"batch": 2/; s/"sequence": 16/"sequence": 64/; s/"n_layer": 2/"n_layer": 4/' plain.json
needs() { # more arguments; the least memory that a strategy needs, in GiB
  "$tessera" plan --job plain.json --cluster-file cluster.json --keep 1000 --json "$@" |
    python3 -c 'import json, sys
print(min(one["needed_bytes"] for one in json.load(sys.stdin)["strategies"]) / 2**30)'
}
whole=$(needs)
each=$(needs --activation-checkpointing)
limit=$(python3 -c "assert $each < 0.99 * $whole, ($each, $whole); print(($whole + $each) / 2)")
python3 - "$limit" <<'PY'
import json, sys
job = json.load(open("plain.json"))
job["checkpoint"]["directory"] = "short"
job["strategy"] = "auto"
job["memory_limit_gib"] = float(sys.argv[1])
json.dump(job, open("short.json", "w"))
PY
losses() {
  python3 -c 'import json, sys
print(*[json.loads(line)["loss"] for line in open(sys.argv[1]) if "loss" in line])' "$1"
}
train plain.json --log plain.jsonl > plain.txt 2>&1 || fail "$(cat plain.txt)"
train short.json --log short.jsonl --cluster-file cluster.json > short.txt 2>&1 || fail "$(cat short.txt)"
grep -q "recomputed activations" short.txt || fail "not recomputed: $(cat short.txt)"
python3 - $(losses plain.jsonl) $(losses short.jsonl) <<'PY' || fail "losses: $(losses plain.jsonl) $(losses short.jsonl)"
import sys
values = [float(one) for one in sys.argv[1:]]
assert len(values) == 4 and all(abs(a - b) < 1e-4 for a, b in zip(values[:2], values[2:])), values
PY
[ "$(status_of given.txt train plain.json --cluster-file cluster.json)" = 2 ] || fail "taken: $(cat given.txt)"
grep -q "this job says its strategy itself" given.txt || fail "$(cat given.txt)"
# The layout of the checkpoint is kept with what is recomputed.
train short.json --resume --set steps=3 > again.txt 2>&1 || fail "$(cat again.txt)"
grep -q "the layout of short/step_2 is kept" again.txt || fail "not kept: $(cat again.txt)"

# A plan writes the job's key, and the job runs.
sed 's/"plain", "every"/"written", "every"/' plain.json > unplanned.json
"$tessera" plan --job unplanned.json --cluster-file cluster.json --memory-limit \
  "$(python3 -c "print(int($limit * 2**30))")" -o written.json > written.txt || fail "$(cat written.txt)"
grep -Eq '"activation_checkpointing": "(each|selective)"' written.json || fail "no key: $(cat written.json)"
train written.json > trained.txt 2>&1 || fail "$(cat trained.txt)"
[ -d written/step_2 ] || fail "it did not train: $(cat trained.txt)"
echo "all as expected"
