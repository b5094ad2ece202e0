# Sourced: an emulated cluster of several hosts on one machine. Network
# namespaces joined by a bridge, links slowed by tc, hosts slowed by quotas of
# processor time. Before: tessera=PROGRAM, and one entry a host in
#   hosts=(a b)  slots=(2 1)  rates=(1gbit 100mbit)  shares=(100 50)  processors=(0 1)
# (rates: of links, beside a processor whose product of two matrices of 512 reaches 118 GFLOP/s in
# f32; they are divided as this machine is slower, since what a plan gains is a matter of both;
# shares: percent of one processor; processors: the one each host runs on, counted among those that
# this script may use, so that hosts on different ones take no time from each other).
# After: `launch COMMAND...` runs it on every rank, `on_head COMMAND...` on the first host alone,
# $work is a folder of its own with a host file `hosts`, everything is removed at the end.
# Exit status 77: namespaces are not permitted here; nothing was tested.
# shellcheck source=tests/cluster/hosts.sh
. "$(dirname "${BASH_SOURCE[0]}")/hosts.sh"
groups=()
period_us=10000 # short, so that a stopped rank soon goes on

clean() {
  for group in "${groups[@]}"; do
    rmdir "$group" 2> /dev/null || true
  done
  remove_hosts
}

# Prints the rates as slow as this machine.
scaled_rates() { # rate...
  local probed
  probed=$(mktemp)
  # As ranks run: the launcher asks for the kernels of products that fit the processor.
  OMP_NUM_THREADS=1 "$tessera" launch -n 1 -- "$tessera" probe --quick -o "$probed" > /dev/null
  python3 - "$probed" "$@" << 'PY'
import json, sys
kind = next(iter(json.load(open(sys.argv[1]))["devices"].values()))
seconds = {size: forward for size, forward, _ in kind["product_seconds"]["f32"]}[512]
speed = 2 * 512**3 / seconds / 118e9
for rate in sys.argv[2:]:
    mbit = float(rate[:-4]) * {"mbit": 1, "gbit": 1000}[rate[-4:]]
    print(f"{round(mbit * speed * 1000)}kbit")
PY
  rm -f "$probed"
}

command -v tc > /dev/null || skip "no program tc; install the Debian package iproute2"
trap clean EXIT
make_hosts tsr$$ 10.77.0
mapfile -t rates < <(scaled_rates "${rates[@]}")
for i in "${!hosts[@]}"; do
  # Out of the host, and into it.
  ip netns exec "$prefix${hosts[$i]}" tc qdisc add dev eth0 root tbf \
    rate "${rates[$i]}" burst 256kb latency 50ms 2> "$work/err" ||
    skip "links cannot be slowed: $(cat "$work/err")"
  ip netns exec "${prefix}net" tc qdisc add dev "port$i" root tbf \
    rate "${rates[$i]}" burst 256kb latency 50ms
done

# A control group for a host: of version 2, else of version 1.
slow_host() { # name, percent of one processor
  local quota_us=$((period_us * $2 / 100)) group
  for parent in /sys/fs/cgroup /sys/fs/cgroup/cpu; do
    group=$parent/$prefix$1
    mkdir "$group" 2> /dev/null || continue
    # The kernel fills in a control group's files; elsewhere there are none.
    if [ -w "$group/cpu.max" ] && echo "$quota_us $period_us" > "$group/cpu.max"; then
      groups+=("$group")
      return 0
    fi
    if [ -w "$group/cpu.cfs_quota_us" ] && echo "$period_us" > "$group/cpu.cfs_period_us" &&
      echo "$quota_us" > "$group/cpu.cfs_quota_us"; then
      groups+=("$group")
      return 0
    fi
    rmdir "$group"
  done
  return 1
}
for i in "${!hosts[@]}"; do
  if ! slow_host "${hosts[$i]}" "${shares[$i]}" 2> /dev/null; then
    echo "no CPU quota here (control groups cannot be written): hosts take processor time from each other"
    break
  fi
done
[ ${#groups[@]} = 0 ] || echo "hosts ${hosts[*]} have ${shares[*]} % of a processor, links ${rates[*]}"

mapfile -t allowed < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)), sep="\n")')
for i in "${!hosts[@]}"; do
  processors[i]=${allowed[$((processors[i] % ${#allowed[@]}))]}
done

# mpirun's way to another host: its namespace under its name, in its group.
cat > "$work/agent" << AGENT
#!/bin/bash
host=\$1; shift
[ ! -e "$work/group.\$host/cgroup.procs" ] || echo \$\$ > "$work/group.\$host/cgroup.procs"
case \$host in
$(for i in "${!hosts[@]}"; do echo "${hosts[$i]}) cpu=${processors[$i]} ;;"; done)
esac
exec taskset -c "\$cpu" ip netns exec "$prefix\$host" unshare --uts sh -c "hostname \$host; \$*"
AGENT
chmod +x "$work/agent"
for i in "${!hosts[@]}"; do
  echo "${hosts[$i]} slots=${slots[$i]}" >> "$work/hosts"
done
ranks=$((${slots[*]/%/ +} 0))
# Of every mpirun, also one that a program on the head starts.
export OMPI_MCA_plm_rsh_agent=$work/agent OMPI_MCA_btl=self,vader,tcp
export OMPI_MCA_btl_tcp_if_include=10.77.0.0/24 OMPI_MCA_oob_tcp_if_include=10.77.0.0/24
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_rmaps_base_mapping_policy=slot

cd "$work"
export OMP_NUM_THREADS=1
# What the launcher chooses for one host; with a host file it cannot know the others' processors,
# but here they are this one.
if kernel=$("$tessera" launch -n 1 --dry-run -- true | grep -o 'OPENBLAS_CORETYPE=[A-Za-z0-9]*'); then
  export "${kernel?}"
fi
# The head is the first host; names are resolved there as everywhere. A network
# namespace has a /sys of its own, so control groups are reached through $work.
on_head() {
  local bind=""
  for group in "${groups[@]}"; do
    local place=$work/group.${group##*"$prefix"}
    mkdir -p "$place"
    bind+="mount --bind '$group' '$place'; "
  done
  unshare --mount sh -c "mount --bind '$work/names' /etc/hosts; $bind
    [ ! -e '$work/group.${hosts[0]}/cgroup.procs' ] || echo \$\$ > '$work/group.${hosts[0]}/cgroup.procs'
    exec taskset -c '${processors[0]}' ip netns exec '$prefix${hosts[0]}' unshare --uts sh -c 'hostname ${hosts[0]}; exec \"\$@\"' _ \"\$@\"" _ "$@"
}
launch() {
  on_head "$tessera" launch -n "$ranks" --hostfile "$work/hosts" -- "$@"
}
