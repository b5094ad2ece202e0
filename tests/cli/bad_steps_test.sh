#!/usr/bin/env bash
# Updates that would spoil the model: not finite, or of a gradient far above the others.
# Usage: bad_steps_test.sh PROGRAM REPOSITORY
set -euo pipefail
tessera=$1
repository=$2
. "$repository"/tests/cli/runs_support.sh
prepare data
state_of() { grep "^saved .*/step_$2," "$1" | sed 's/.*state //'; }

# Ranges.
cat > ranges.json <<'JSON'
{"data": {"directory": "data"}, "optimizer": {"learning_rate": -1, "beta1": 1, "beta2": 1.5,
  "eps": 0, "momentum": -0.5, "weight_decay": -1, "clip_norm": -1, "min_learning_rate": -1},
 "bad_steps": {"not_finite": "ignore", "spike": 0.5, "most_skipped": -1}}
JSON
[ "$(status_of ranges.txt "$tessera" train ranges.json --check)" = 2 ] || fail "ranges: $(cat ranges.txt)"
for key in optimizer.learning_rate optimizer.beta1 optimizer.beta2 optimizer.eps optimizer.momentum \
  optimizer.weight_decay optimizer.clip_norm optimizer.min_learning_rate bad_steps.not_finite \
  bad_steps.spike bad_steps.most_skipped; do
  grep -q "'$key'" ranges.txt || fail "$key is not refused: $(cat ranges.txt)"
done

# An enormous rate spoils the model in the second step, on every rank alike.
for mode in "" '"ddp": true, ' '"ddp": true, "static_mode": true, "static_mode_steps": 1, "fast_mode": true, '; do
  ranks=2
  case $mode in *ddp*) ranks=4 ;; esac
  rm -rf stops skips skips.jsonl
  job stops 1e20 6 "$two_stages$mode" ""
  [ "$(status_of stops.txt train stops.json --log stops.jsonl)" = 1 ] || fail "nan: $(cat stops.txt)"
  grep -q "tessera: step 2: the loss is .*not_finite" stops.txt || fail "nan: $(cat stops.txt)"
  [ "$(grep -c 'tessera: step 2' stops.txt)" = 1 ] || fail "said twice: $(cat stops.txt)"
  [ "$(ls stops | tr '\n' ' ')" = "newest step_1 " ] || fail "kept: $(ls -A stops)"
  # Two good steps, then the enormous rate: the good checkpoint before it stays.
  job skips 1e-3 2 "$two_stages$mode" ""
  [ "$(status_of good.txt train skips.json)" = 0 ] || fail "good: $(cat good.txt)"
  job skips 1e20 8 "$two_stages$mode" ', "bad_steps": {"not_finite": "skip", "most_skipped": 3}'
  [ "$(status_of skips.txt train skips.json --resume --log skips.jsonl)" = 1 ] ||
    fail "skip: $(cat skips.txt)"
  [ "$(grep -c '^step [456]: update left out: the loss is' skips.txt)" = 3 ] ||
    fail "skip: $(cat skips.txt)"
  grep -q "step 7: .*update 4 in a row.*before the update of step 3" skips.txt ||
    fail "no limit: $(cat skips.txt)"
  first=$(state_of skips.txt 3)
  for step in 4 5 6; do
    [ -n "$first" ] && [ "$(state_of skips.txt $step)" = "$first" ] ||
      fail "update $step was applied: $(cat skips.txt)"
  done
  [ "$(grep -c '"skipped":"the loss is' skips.jsonl)" = 3 ] || fail "log: $(grep skipped skips.jsonl)"
  [ "$(ls skips | tr '\n' ' ')" = "newest step_2 step_3 step_4 step_5 step_6 " ] ||
    fail "kept: $(ls -A skips)"
  # As the message says: without them the run goes on from before.
  rm -r skips/step_[3456]
  job skips 1e-3 4 "$two_stages$mode" ""
  [ "$(status_of again.txt train skips.json --resume)" = 0 ] || fail "again: $(cat again.txt)"
  grep -q "^resumed from skips/step_2" again.txt || fail "again: $(cat again.txt)"
done

# Spikes: what was left out is what the log's own norms say, and leaves the state alone.
ranks=2
job spikes 1e-4 30 "$two_stages" ', "bad_steps": {"spike": 1.02, "most_skipped": 30}'
[ "$(status_of spikes.txt train spikes.json --log spikes.jsonl)" = 0 ] || fail "spikes: $(cat spikes.txt)"
python3 - spikes.jsonl spikes.txt <<'PY' || fail "spikes: $(cat spikes.txt)"
import json, re, sys
states = dict(re.findall(r"^saved \S+step_(\d+), state (\S+)$", open(sys.argv[2]).read(), re.M))
mean, applied, left_out = 0, 0, 0
for line in map(json.loads, open(sys.argv[1])):
    if line["type"] != "step":
        continue
    spike = applied >= 10 and line["grad_norm"] > 1.02 * mean
    assert ("skipped" in line) == spike, (line, mean)
    step = line["step"]
    if step > 1:
        assert (states[str(step)] == states[str(step - 1)]) == spike, step
    if spike:
        left_out += 1
    else:
        applied += 1
        mean += (line["grad_norm"] - mean) * max(1 / applied, 0.05)
assert 0 < left_out < 20, left_out
PY
grep -q "^updates left out since the job began: " spikes.txt || fail "no count: $(cat spikes.txt)"

echo "all as expected"
