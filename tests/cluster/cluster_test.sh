#!/usr/bin/env bash
# An uneven cluster of three hosts, emulated on one machine: a fast host of two
# ranks, a slower one, and a slow one behind a slow link. Probes it, plans on it,
# trains the planner's pick and the Megatron heuristic's pick, asserts that both
# train the same numbers, and prints both step times. Both picks are the fastest
# of TRIALS that were predicted to be best.
# usage: cluster_test.sh PROGRAM REPOSITORY [STEPS [LAYERS [WIDTH [TRIALS [RATIO]]]]]
# With RATIO, for an otherwise idle machine, the heuristic's step must take at
# least so many times the planner's. A quota stops a host for up to 7 ms, so the
# work of a microbatch should be several times that: width 384.
# Exit status 77: namespaces are not permitted here; nothing was tested.
set -euo pipefail
tessera=$(realpath "$1")
repository=$(realpath "$2")
steps=${3:-14}
layers=${4:-8}
width=${5:-192}
trials=${6:-4}
least_ratio=${7:-0}
hosts=(a b c)
slots=(2 1 1)
rates=(1gbit 1gbit 100mbit)
shares=(100 50 25)
processors=(0 1 1)
# shellcheck source=tests/cluster/emulate.sh
. "$repository/tests/cluster/emulate.sh"
# shellcheck source=tests/cluster/compare.sh
. "$repository/tests/cluster/compare.sh"

prepare_job "$layers" "$width" 16
python3 - cluster.json << 'PY' || fail "the probe does not see the cluster that was built"
import json, sys
cluster = json.load(open(sys.argv[1]))
assert [node["count"] for node in cluster["nodes"]] == [2, 1, 1], cluster["nodes"]
speed = {tuple(link["nodes"]): link["gbit_per_s"] for link in cluster["links"]}
assert speed[0, 1] > 2 * speed[0, 2], speed  # 1 Gbit/s against 0.1
assert speed[0, 2] < 0.2, speed
assert cluster["probe"]["rounds"] > 1, cluster["probe"]
PY
plan_by_trials planner "$trials"
plan_by_trials megatron "$trials" --method megatron
cmp -s planner.json megatron.json && fail "the planner picks what the heuristic picks, on an uneven cluster"
train_in_turns "$steps" planner megatron
compare_steps "uneven cluster" planner megatron "$least_ratio"
