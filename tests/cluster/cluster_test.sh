#!/usr/bin/env bash
# An uneven cluster of three hosts, emulated on one machine: a fast host of two
# ranks, a slower one, and a slow one behind a slow link. Probes it, plans on it,
# trains the planner's pick and the Megatron heuristic's pick, asserts that both
# train the same numbers, and prints both step times.
# usage: cluster_test.sh PROGRAM REPOSITORY [STEPS [LAYERS [RATIO]]]
# With RATIO, for an otherwise idle machine, the heuristic's step must take at
# least so many times the planner's.
# Exit status 77: namespaces are not permitted here; nothing was tested.
set -euo pipefail
tessera=$(realpath "$1")
repository=$(realpath "$2")
steps=${3:-8}
layers=${4:-8}
export LEAST_RATIO=${5:-0}
hosts=(a b c)
slots=(2 1 1)
rates=(1gbit 1gbit 100mbit)
shares=(100 50 25)
processors=(0 1 1)
# shellcheck source=tests/cluster/emulate.sh
. "$repository/tests/cluster/emulate.sh"

launch "$tessera" probe --quick -o cluster.json
python3 - cluster.json << 'PY' || fail "the probe does not see the cluster that was built"
import json, sys
cluster = json.load(open(sys.argv[1]))
assert [node["count"] for node in cluster["nodes"]] == [2, 1, 1], cluster["nodes"]
speed = {tuple(link["nodes"]): link["gbit_per_s"] for link in cluster["links"]}
assert speed[0, 1] > 2 * speed[0, 2], speed  # 1 Gbit/s against 0.1
assert speed[0, 2] < 0.2, speed
assert cluster["probe"]["rounds"] > 1, cluster["probe"]
PY

"$tessera" data prepare --output data --vocab-size 400 \
  --text "$repository"/README.md "$repository"/docs/*.md > /dev/null
cat > job.json << JSON
{"parallel": {"timeout_seconds": 100},
 "model": {"name": "gpt-mini", "options": {"dropout": 0, "n_layer": $layers, "n_embd": 192, "n_head": 4}},
 "data": {"directory": "data", "sequence": 32, "batch": 16},
 "steps": 100, "log_every": 1}
JSON
plan() { # file, option...
  local file=$1
  shift
  "$tessera" plan --job job.json --cluster-file cluster.json --keep-node-order --explain 1 \
    --keep 5 -o "$file" "$@"
}
plan planner.json
plan megatron.json --method megatron
# Taken in turns, so that a busy minute meets both.
for round in 1 2; do
  for pick in planner megatron; do
    launch "$tessera" train $pick.json --steps "$steps" --log $pick.$round.jsonl > $pick.txt 2>&1 ||
      fail "$pick: $(tail -n 5 $pick.txt)"
  done
done
cmp -s planner.json megatron.json && fail "the planner picks what the heuristic picks, on an uneven cluster"
python3 - << 'PY'
import json, os, statistics
def rows(pick, round):
    return [r for r in map(json.loads, open(f"{pick}.{round}.jsonl")) if "step_seconds" in r]
def step(pick):
    return min(statistics.median([r["step_seconds"] for r in rows(pick, k)][2:]) for k in (1, 2))
def losses(pick, round):
    return [r["loss"] for r in rows(pick, round)]
for round in (1, 2):
    for mine, other in zip(losses("planner", round), losses("megatron", 1), strict=True):
        assert abs(mine - other) < 1e-3 * other, (round, losses("planner", round), losses("megatron", 1))
mine, heuristic = step("planner"), step("megatron")
print(f"uneven cluster: planner's pick {mine:.4f} s a step, Megatron heuristic's {heuristic:.4f} s: {heuristic / mine:.2f} x")
least = float(os.environ["LEAST_RATIO"])
assert heuristic >= least * mine, f"less than {least} x"
PY
