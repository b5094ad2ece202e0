#!/usr/bin/env bash
# A 2 x 2 and a 4 x 4 mesh over the hosts of an emulated cluster: network
# namespaces joined by a bridge, ranks of one host in shared memory, of different
# hosts over TCP. Counts what leaves the hosts' network devices in a training
# step of Optimus, with ranks bunched (the default) and in their natural order.
# usage: mesh_test.sh BENCH_OPTIMUS
# Exit status 77: namespaces are not permitted here; nothing was tested.
set -euo pipefail
program=$(realpath "$1")
hosts=(a b c d)
# shellcheck source=tests/cluster/hosts.sh
. "$(dirname "$0")/hosts.sh"
trap remove_hosts EXIT
make_hosts tsm$$ 10.78.0
cat > "$work/agent" <<AGENT
#!/bin/bash
host=\$1; shift
exec ip netns exec "$prefix\$host" unshare --uts sh -c "hostname \$host; \$*"
AGENT
chmod +x "$work/agent"

export OMP_NUM_THREADS=1
cd "$work"
# run HOSTS SLOTS MAPPING ARGUMENTS...: the program over the first hosts.
run() {
  local count=$1 slots=$2 mapping=$3
  shift 3
  : > hosts
  for host in "${hosts[@]:0:$count}"; do
    echo "$host slots=$slots" >> hosts
  done
  unshare --mount sh -c "mount --bind '$work/names' /etc/hosts &&
    exec ip netns exec '$prefix${hosts[0]}' unshare --uts sh -c 'hostname ${hosts[0]}; exec \"\$@\"' _ \"\$@\"" _ \
    mpirun --allow-run-as-root --bind-to none --map-by "$mapping" \
    -n $((count * slots)) --hostfile "$work/hosts" \
    --mca plm_rsh_agent "$work/agent" --mca btl self,vader,tcp \
    --mca btl_tcp_if_include 10.78.0.0/24 --mca oob_tcp_if_include 10.78.0.0/24 \
    --mca mpi_yield_when_idle 1 --mca btl_vader_single_copy_mechanism none \
    "$program" weak --scheme optimus --json "$@" > run.txt 2> run.err ||
    fail "$*: $(cat run.txt run.err)"
}
sent() {
  local total=0 host
  for host in "${hosts[@]}"; do
    total=$((total + $(ip netns exec "$prefix$host" cat /sys/class/net/eth0/statistics/tx_bytes)))
  done
  echo "$total"
}
# Bytes between hosts in one step: what two more steps add.
per_step() {
  local before middle after
  before=$(sent)
  run "$@" --rounds 2
  middle=$(sent)
  run "$@" --rounds 4
  after=$(sent)
  echo $(((after - middle - (middle - before)) / 2))
}
compare() {
  local title=$1 bunched natural
  shift
  bunched=$(per_step "$@") # the default
  natural=$(per_step "$@" --arrangement row_major)
  echo "$title: bunched $bunched, natural $natural bytes between hosts a step" \
    "($(awk "BEGIN {printf \"%.2f\", $bunched / $natural}") of it)"
  [ "$bunched" -lt $((natural * 9 / 10)) ] || fail "$title: bunching saves nothing"
}

# Ranks dealt to the hosts in turn, as the natural order of many launchers: a
# mesh row of 2 is then spread over both, bunched it is on one.
compare "2 x 2 on 2 hosts" 2 2 node --layers 1 --width 64 --batch 8 --sequence 32
# Figure 8: a column spans four hosts, bunched two.
compare "4 x 4 on 4 hosts" 4 4 slot --layers 1 --width 64 --batch 1 --sequence 32
