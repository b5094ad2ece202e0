# Sourced: hosts emulated by network namespaces that a bridge joins. Before: hosts=(a b), names of
# the hosts. `make_hosts PREFIX SUBNET` makes them: namespaces PREFIX + name with device eth0 and
# addresses SUBNET.1 and so on, and $work/names in the form of /etc/hosts. $work is a folder of its
# own; `remove_hosts` removes all of it.
# Exit status 77: namespaces are not permitted here; nothing was tested.
work=$(mktemp -d)
prefix=

skip() {
  echo "SKIPPED: $*"
  exit 77
}
fail() {
  echo "FAILED: $*" >&2
  exit 1
}

remove_hosts() {
  for host in "${hosts[@]}" net; do
    ip netns del "$prefix$host" 2> /dev/null || true
  done
  rm -rf "$work"
}

make_hosts() { # PREFIX SUBNET
  prefix=$1
  local subnet=$2 i name
  [ "$(id -u)" = 0 ] || skip "network namespaces need root"
  command -v ip > /dev/null || skip "no program ip; install the Debian package iproute2"
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
    ip -n "$name" addr add "$subnet.$((i + 1))/24" dev eth0
    ip -n "$name" link set eth0 up
    ip -n "${prefix}net" link set "port$i" master switch0 up
    echo "$subnet.$((i + 1)) ${hosts[$i]}" >> "$work/names"
  done
  cat /etc/hosts >> "$work/names"
}
