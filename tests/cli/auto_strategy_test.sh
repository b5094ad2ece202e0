#!/usr/bin/env bash
# "strategy": "auto" gives its memory back, and a resumed run keeps the layout.
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

# Another number of ranks needs another layout, and --replan asks for one.
ranks=1
train auto.json --resume --steps 3 > alone.txt 2>&1 || fail "$(cat alone.txt)"
grep -q "was planned for 2 processes, this run has 1: planning anew" alone.txt ||
  fail "another number of ranks: $(cat alone.txt)"
grep -q "^resumed from auto/step_2" alone.txt || fail "not resumed: $(cat alone.txt)"
train auto.json --resume --replan > anew.txt 2>&1 || fail "$(cat anew.txt)"
grep -q "strategy auto: .* combinations" anew.txt || fail "--replan: $(cat anew.txt)"

# Quiet, nothing is said of the plan; the run trains all the same.
TESSERA_LOG=warning train auto.json --resume --replan --set steps=5 > quiet.txt 2>&1 || fail "$(cat quiet.txt)"
if grep -q "strategy auto" quiet.txt; then fail "not quiet: $(cat quiet.txt)"; fi
[ -d auto/step_5 ] || fail "quiet, it did not train: $(cat quiet.txt)"
echo "all as expected"
