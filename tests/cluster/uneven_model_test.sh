#!/usr/bin/env bash
# A model of uneven layers (uneven_model.cpp) on four equal hosts of one rank,
# emulated on one machine. Probes them, measures the layers, plans, trains the
# planner's pick and the Megatron heuristic's pick, and prints both step times.
# Both picks are the fastest of TRIALS that were predicted to be best.
# usage: uneven_model_test.sh BUILD REPOSITORY [STEPS [TRIALS [RATIO]]]
# With RATIO, for an otherwise idle machine, the heuristic's step must take at
# least so many times the planner's.
# Exit status 77: namespaces are not permitted here; nothing was tested.
set -euo pipefail
build=$(realpath "$1")
tessera=$build/bin/tessera
model=$build/bin/uneven_model
repository=$(realpath "$2")
steps=${3:-8}
trials=${4:-4}
least_ratio=${5:-0}
hosts=(a b c d)
slots=(1 1 1 1)
rates=(200mbit 200mbit 200mbit 200mbit)
shares=(45 45 45 45)
processors=(0 0 1 1)
# shellcheck source=tests/cluster/emulate.sh
. "$repository/tests/cluster/emulate.sh"

launch "$tessera" probe --quick -o cluster.json
launch "$model" profile cluster.json model.json
python3 - << 'PY'
import json
for layer in json.load(open("model.json"))["layers"]:
    print(layer["name"], layer["parameters"], layer["output_elements_per_sample"],
          layer["forward_seconds_per_sample"], layer["fixed_seconds"])
PY
echo '{}' > anything.json # trials say the strategy
plan() { # file, option...
  local file=$1
  shift
  on_head "$tessera" plan --model-file model.json --cluster-file cluster.json --keep-node-order \
    --explain 1 --keep 5 --fast-mode --trials "$trials" --trial-steps 5 --hostfile "$work/hosts" -o "$file" "$@" \
    -- "$model" train anything.json 100
}
plan planner.json
plan megatron.json --method megatron
for pick in planner megatron; do
  cat $pick.json
done
for round in 1 2; do
  for pick in planner megatron; do
    launch "$model" train $pick.json "$steps" > $pick.$round.txt 2>&1 ||
      fail "$pick: $(tail -n 5 $pick.$round.txt)"
  done
done
python3 - "$least_ratio" << 'PY'
import sys
def step(pick):
    def middle(round):
        lines = open(f"{pick}.{round}.txt").read().splitlines()
        return next(float(l.split()[-1]) for l in lines if l.startswith("seconds a step"))
    return min(middle(1), middle(2))
mine, heuristic = step("planner"), step("megatron")
print(f"uneven model: planner's pick {mine:.4f} s a step, Megatron heuristic's {heuristic:.4f} s: {heuristic / mine:.2f} x")
assert heuristic >= float(sys.argv[1]) * mine, f"less than {sys.argv[1]} x"
PY
