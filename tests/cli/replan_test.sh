#!/usr/bin/env bash
# A host leaves: the job is planned for the ranks that are left and goes on from
# its checkpoints, with the losses of a run that was never interrupted.
# Usage: replan_test.sh PROGRAM REPOSITORY
set -euo pipefail
tessera=$1
repository=$2
. "$repository"/tests/cli/runs_support.sh
refused() { # expected text, command...
  local expected=$1
  shift
  if "$@" > refused.txt 2>&1; then fail "accepted: $*"; fi
  grep -q -- "$expected" refused.txt || fail "expected '$expected': $(cat refused.txt)"
}
losses() { # log
  python3 -c 'import json, sys
print(*(line["loss"] for line in map(json.loads, open(sys.argv[1])) if "loss" in line))' "$1"
}
prepare data
job small 1e-3 4 "" ""
sed -i 's/"dropout": 0.1/"dropout": 0/' small.json

# Two hosts of two ranks each, as fast as this machine.
"$tessera" launch -n 2 -- "$tessera" probe --quick -o probed.json > probe.txt
python3 - <<'PY'
import json
cluster = json.load(open("probed.json"))
(node,) = cluster["nodes"]
cluster["nodes"] = [dict(node, host=host, count=2, inter_node_gbit_per_s=10) for host in ("ant", "bee")]
cluster["collectives"] = []
cluster.pop("links", None)
json.dump(cluster, open("cluster.json", "w"))
PY

plan() { "$tessera" plan --job "$1" --cluster-file cluster.json --keep-node-order "${@:2}"; }
plan small.json -o before.json > before.txt || fail "$(cat before.txt)"
ranks=4
train before.json --steps 2 --log before.jsonl > trained.txt 2>&1 || fail "$(cat trained.txt)"

plan small.json --without bee --from small -o after.json > after.txt || fail "$(cat after.txt)"
grep -q "small/step_2, written by pp .* loads under the new plan" after.txt ||
  fail "no word of the checkpoint: $(cat after.txt)"
grep -q "go on with: tessera launch -n 2 -- tessera train after.json --resume" after.txt ||
  fail "no word of how to go on: $(cat after.txt)"
plan small.json --without bee --from small -o hosted.json --write-hostfile hosts > hosted.txt ||
  fail "$(cat hosted.txt)"
grep -q "go on with: tessera launch -n 2 --hostfile hosts -- tessera train hosted.json --resume" hosted.txt ||
  fail "not the hosts to go on with: $(cat hosted.txt)"
test "$(grep -c "tessera launch" hosted.txt)" = 1 || fail "two ways to go on: $(cat hosted.txt)"
ranks=2
train after.json --resume --log after.jsonl > resumed.txt 2>&1 || fail "$(cat resumed.txt)"
grep -q "^resumed from small/step_2" resumed.txt || fail "not resumed: $(cat resumed.txt)"

# The same job on one rank from the start.
ranks=1
sed 's/"directory": "small"/"directory": "alone"/' small.json > alone.json
train alone.json --log alone.jsonl > alone.txt 2>&1 || fail "$(cat alone.txt)"
python3 - "$(losses before.jsonl) $(losses after.jsonl)" "$(losses alone.jsonl)" <<'PY' || fail "losses differ"
import sys
replanned, alone = ([float(loss) for loss in text.split()] for text in sys.argv[1:])
assert len(replanned) == len(alone) == 4, (replanned, alone)
for one, other in zip(replanned, alone):
    assert abs(one - other) <= 1e-4 * abs(other), (replanned, alone)
PY

refused "write one of the hosts of the cluster: ant, bee" plan small.json --without cat
refused "no host is left" plan small.json --without ant --without bee
refused "is one checkpoint; write the folder" plan small.json --without bee --from small/step_4
sed 's/"n_embd": 32/"n_embd": 64/' small.json > wider.json
refused "shape" plan wider.json --without bee --from small
echo "all as expected"
