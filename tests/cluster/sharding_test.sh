#!/usr/bin/env bash
# The tests of sharded parameters on an emulated cluster: two hosts of two ranks
# each, network namespaces joined by a bridge, ranks of one host in shared memory,
# of different hosts over TCP. Shard groups of 4 then span both hosts.
# usage: sharding_test.sh SHARDING_MPI_TEST [FILTER]
# Left out: what is so on one host only, and files that hosts would have to share.
# Exit status 77: namespaces are not permitted here; nothing was tested.
set -euo pipefail
program=$(realpath "$1")
filter=${2:-Nodes.*:Numbers*.*:Uses.*:Zeroing.*-Uses.NothingIsCopiedForAnOperator}
hosts=(a b)
# shellcheck source=tests/cluster/hosts.sh
. "$(dirname "$0")/hosts.sh"
trap remove_hosts EXIT
make_hosts tss$$ 10.79.0
cat > "$work/agent" <<AGENT
#!/bin/bash
host=\$1; shift
exec ip netns exec "$prefix\$host" unshare --uts sh -c "hostname \$host; \$*"
AGENT
chmod +x "$work/agent"

export OMP_NUM_THREADS=1
cd "$work"
printf 'a slots=2\nb slots=2\n' > hosts
# run MAPPING: ranks dealt to the hosts by slot (a a b b) or in turn (a b a b).
run() {
  unshare --mount sh -c "mount --bind '$work/names' /etc/hosts &&
    exec ip netns exec '${prefix}a' unshare --uts sh -c 'hostname a; exec \"\$@\"' _ \"\$@\"" _ \
    mpirun --allow-run-as-root --bind-to none --map-by "$1" -n 4 --hostfile "$work/hosts" \
    --mca plm_rsh_agent "$work/agent" --mca btl self,vader,tcp \
    --mca btl_tcp_if_include 10.79.0.0/24 --mca oob_tcp_if_include 10.79.0.0/24 \
    --mca mpi_yield_when_idle 1 --mca btl_vader_single_copy_mechanism none \
    "$program" "--gtest_filter=$filter" > run.txt 2>&1 || fail "$1: $(cat run.txt)"
  grep -E "^\[ +(OK|PASSED|SKIPPED) +\]" run.txt
}
run slot
run node
