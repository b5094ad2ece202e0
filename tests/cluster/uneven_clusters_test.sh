#!/usr/bin/env bash
# Six uneven clusters, emulated on one machine one after the other. On each the planner's pick is
# compared with the best of all strategies that give each stage as many layers or parameters; both
# are the fastest of TRIALS that were predicted to be best.
# usage: uneven_clusters_test.sh PROGRAM REPOSITORY [RATIO [TRIALS [NAME...]]]
# RATIO, for an otherwise idle machine: how many times the planner's step the even one must take.
# Exit status 77: namespaces are not permitted here; nothing was tested.
set -euo pipefail
tessera=$(realpath "$1")
repository=$(realpath "$2")
least_ratio=${3:-0}
trials=${4:-3}
shift $(($# < 4 ? $# : 4))
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(falling one_fast old_host straggler far_and_slow little_memory)

# NAME: hosts, ranks of each, its link, its percent of a processor, the processor; the GiB that each
# host lends to a rank (0: what the probe found); layers, width and batch of the model.
describe() {
  lends=(0 0 0 0)
  model=(8 256 64) # microbatches enough to fill a pipeline of four
  case $1 in
    falling) hosts=(a b c d) slots=(1 1 1 1) rates=(1gbit 1gbit 1gbit 1gbit) shares=(100 50 30 20) processors=(0 1 1 1) ;;
    one_fast) hosts=(a b c) slots=(1 2 1) rates=(1gbit 1gbit 1gbit) shares=(100 50 25) processors=(0 1 1) ;;
    old_host) hosts=(a b) slots=(2 2) rates=(1gbit 1gbit) shares=(100 30) processors=(0 1) ;;
    straggler) hosts=(a b c d) slots=(1 1 1 1) rates=(1gbit 1gbit 1gbit 1gbit) shares=(50 50 50 15) processors=(0 0 1 1) ;;
    far_and_slow) hosts=(a b c) slots=(2 1 1) rates=(1gbit 1gbit 100mbit) shares=(100 70 25) processors=(0 1 1) ;;
    # Two layers, of which the first host's two ranks hold one if they divide it; a link that takes
    # longer for what a divided layer exchanges than for gradients.
    little_memory) hosts=(a b c) slots=(2 1 1) rates=(1gbit 100mbit 100mbit) shares=(100 50 50) processors=(0 1 1)
      lends=(0.055 0 0) model=(2 512 256) ;;
    *) echo "$1: no such cluster" >&2 && exit 2 ;;
  esac
}

one_cluster() { # NAME
  describe "$1"
  # shellcheck source=tests/cluster/emulate.sh
  . "$repository/tests/cluster/emulate.sh"
  # shellcheck source=tests/cluster/compare.sh
  . "$repository/tests/cluster/compare.sh"
  prepare_job "${model[@]}"
  lend_memory "${lends[@]:0:${#hosts[@]}}"
  plan_by_trials planner "$trials"
  plan_by_trials uniform "$trials" --method uniform
  train_in_turns 14 planner uniform
  compare_steps "$1" planner uniform "$least_ratio"
}

failed=()
for name in "${names[@]}"; do
  echo "== $name"
  # A shell of its own, which removes its cluster at its end.
  status=0
  (set -e; one_cluster "$name") || status=$?
  [ "$status" != 77 ] || exit 77
  [ "$status" = 0 ] || failed+=("$name")
done
[ ${#failed[@]} = 0 ] || { echo "FAILED: ${failed[*]}" >&2; exit 1; }
