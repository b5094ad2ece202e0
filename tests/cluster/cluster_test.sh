#!/usr/bin/env bash
# An emulated cluster of three hosts on one machine: network namespaces joined
# by a bridge, links slowed by tc, a host slowed by a CPU quota where control
# groups can be written. Probes it, plans on it, trains the planner's pick and
# the Megatron heuristic's pick, and prints both step times.
# usage: cluster_test.sh PROGRAM REPOSITORY [STEPS]
# Exit status 77: namespaces are not permitted here; nothing was tested.
set -euo pipefail
tessera=$1
repository=$2
steps=${3:-6}
prefix=tsr$$
hosts=(a b c)
slots=(2 1 1)
rates=(1gbit 1gbit 100mbit) # of each host's connection
quota_host=c
quota_us=50000 # of every 100000: half a core
work=$(mktemp -d)
group="" # of the slowed host, once it is made

skip() {
  echo "SKIPPED: $*"
  exit 77
}
clean() {
  for host in "${hosts[@]}"; do
    ip netns del "$prefix$host" 2> /dev/null || true
  done
  ip netns del "${prefix}net" 2> /dev/null || true
  [ -z "$group" ] || rmdir "$group" 2> /dev/null || true
  rm -rf "$work"
}
trap clean EXIT

[ "$(id -u)" = 0 ] || skip "network namespaces need root"
command -v ip > /dev/null || skip "no ip (Debian package iproute2)"
command -v tc > /dev/null || skip "no tc (Debian package iproute2)"
ip netns add "${prefix}net" 2> "$work/err" ||
  skip "no network namespace: $(cat "$work/err")"

ip -n "${prefix}net" link add name switch0 type bridge 2> "$work/err" ||
  skip "no bridge: $(cat "$work/err")"
ip -n "${prefix}net" link set switch0 up
for i in "${!hosts[@]}"; do
  name=$prefix${hosts[$i]}
  ip netns add "$name"
  ip -n "$name" link set lo up
  ip -n "$name" link add eth0 type veth peer name "port$i" netns "${prefix}net"
  ip -n "$name" addr add "10.77.0.$((i + 1))/24" dev eth0
  ip -n "$name" link set eth0 up
  ip -n "${prefix}net" link set "port$i" master switch0 up
  # Out of the host, and into it.
  ip netns exec "$name" tc qdisc add dev eth0 root tbf \
    rate "${rates[$i]}" burst 256kb latency 50ms 2> "$work/err" ||
    skip "links cannot be slowed: $(cat "$work/err")"
  ip netns exec "${prefix}net" tc qdisc add dev "port$i" root tbf \
    rate "${rates[$i]}" burst 256kb latency 50ms
done

# Control groups of version 2, then of version 1.
slow_host() {
  for parent in /sys/fs/cgroup /sys/fs/cgroup/cpu; do
    mkdir "$parent/$prefix" 2> /dev/null || continue
    group=$parent/$prefix
    # The kernel fills in a control group's files; elsewhere there are none.
    if [ -w "$group/cpu.max" ] && echo "$quota_us 100000" > "$group/cpu.max"; then
      return 0
    fi
    if [ -w "$group/cpu.cfs_quota_us" ] && echo "$quota_us" > "$group/cpu.cfs_quota_us"; then
      return 0
    fi
    rmdir "$group"
    group=""
  done
  return 1
}
enter=""
if slow_host 2> /dev/null; then
  echo "host $quota_host has $quota_us of every 100000 us of a processor"
  enter="echo \$\$ > $group/cgroup.procs"
else
  echo "no CPU quota here (control groups cannot be written); hosts differ by their links alone"
fi

# mpirun's way to another host: its namespace under its name.
cat > "$work/agent" <<AGENT
#!/bin/bash
host=\$1; shift
[ "\$host" = "$quota_host" ] && ${enter:-true}
exec ip netns exec "$prefix\$host" unshare --uts sh -c "hostname \$host; \$*"
AGENT
chmod +x "$work/agent"
for i in "${!hosts[@]}"; do
  echo "${hosts[$i]} slots=${slots[$i]}" >> "$work/hosts"
  echo "10.77.0.$((i + 1)) ${hosts[$i]}" >> "$work/names"
done
cat /etc/hosts >> "$work/names"
cat > "$work/launch.json" <<JSON
{"mpi": {"custom_mpi_options": "--mca plm_rsh_agent $work/agent --mca btl self,vader,tcp --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 --mca mpi_yield_when_idle 1 --map-by slot"}}
JSON

cd "$work"
export OMP_NUM_THREADS=1
# The head is the first host; names are resolved there as everywhere.
on_head() {
  unshare --mount sh -c "mount --bind '$work/names' /etc/hosts &&
    exec ip netns exec '$prefix${hosts[0]}' unshare --uts sh -c 'hostname ${hosts[0]}; exec \"\$@\"' _ \"\$@\"" _ "$@"
}
launch() {
  on_head "$tessera" launch -n 4 --hostfile "$work/hosts" --config "$work/launch.json" -- "$@"
}
fail() {
  echo "FAILED: $*" >&2
  exit 1
}

launch "$tessera" probe --quick -o cluster.json
python3 - cluster.json <<'PY' || fail "the probe does not see the cluster that was built"
import json, sys
cluster = json.load(open(sys.argv[1]))
assert [node["count"] for node in cluster["nodes"]] == [2, 1, 1], cluster["nodes"]
speed = {tuple(link["nodes"]): link["gbit_per_s"] for link in cluster["links"]}
assert speed[0, 1] > 2 * speed[0, 2], speed  # 1 Gbit/s against 0.1
assert speed[0, 2] < 0.2, speed
PY

"$tessera" data prepare --output data --vocab-size 400 \
  --text "$repository"/README.md "$repository"/docs/*.md > /dev/null
cat > job.json <<'JSON'
{"parallel": {"timeout_seconds": 100},
 "model": {"name": "gpt-mini", "options": {"dropout": 0, "n_layer": 8, "n_embd": 192, "n_head": 4}},
 "data": {"directory": "data", "sequence": 32, "batch": 16},
 "steps": 100, "log_every": 1}
JSON
"$tessera" plan --job job.json --cluster-file cluster.json --keep 5 -o planner.json
"$tessera" plan --job job.json --cluster-file cluster.json --method megatron --keep 3 -o megatron.json
for pick in planner megatron; do
  launch "$tessera" train $pick.json --steps "$steps" --log $pick.jsonl > $pick.txt 2>&1 ||
    fail "$pick: $(tail -n 5 $pick.txt)"
done
python3 - <<'PY'
import json, statistics
def step(pick):
    rows = [json.loads(line) for line in open(pick + ".jsonl")]
    seconds = [row["step_seconds"] for row in rows if "step_seconds" in row]
    return statistics.median(seconds[2:])
mine, heuristic = step("planner"), step("megatron")
print(f"planner's pick {mine:.4f} s a step, Megatron heuristic's {heuristic:.4f} s: {heuristic / mine:.2f} x")
PY
