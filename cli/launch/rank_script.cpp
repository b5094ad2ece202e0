#include "cli/launch/rank_script.h"

namespace tessera::cli {

// The launcher sends USR1 to ask the ranks to end in good order, because mpirun forwards
// it, but not TERM. The script passes TERM on to the program, which must not see USR1.
// A rank that was asked to end prints nothing, since only the first failure matters. The
// program runs in the background, because a shell handles signals only between foreground
// commands. A background program would lose its input, hence descriptor 3.
//
// The kernel may put a waking rank on the core of another one although the core where it last ran
// has just become idle, and both stay there for milliseconds. So where there are enough cores each
// rank gets its own, with all hardware threads of each. More ranks than cores, more threads than
// the share has processors and a host without these programs leave a rank free to move (decision
// 199).
const char* const kRankScript = R"sh(stopped= child= ends=$TESSERA_RANK_ENDS
share=$TESSERA_SHARE_CORES own=
unset TESSERA_RANK_ENDS TESSERA_SHARE_CORES
if [ -n "$share" ] && [ "${OMPI_COMM_WORLD_LOCAL_SIZE:-1}" -gt 1 ]; then
  allowed=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
  own=$(lscpu -p=SOCKET,CORE,CPU 2> /dev/null | sort -t , -k 1,1n -k 2,2n -k 3,3n |
    awk -F , -v allowed="$allowed" -v rank="$OMPI_COMM_WORLD_LOCAL_RANK" \
      -v ranks="$OMPI_COMM_WORLD_LOCAL_SIZE" -v threads="${OMP_NUM_THREADS:-1}" '
      BEGIN {
        for (i = split(allowed, parts, ","); i > 0; i--) {
          last = split(parts[i], range, "-")
          for (cpu = range[1]; cpu <= range[last]; cpu++) may[cpu + 0] = 1
        }
      }
      /^[0-9]/ && ($3 + 0) in may {
        if (!(($1, $2) in cpus)) core[cores++] = $1 SUBSEP $2
        cpus[$1, $2] = cpus[$1, $2] "," $3
      }
      END {
        if (ranks > cores) exit
        end = int((rank + 1) * cores / ranks)
        for (i = int(rank * cores / ranks); i < end; i++) own = own cpus[core[i]]
        if (gsub(",", ",", own) >= threads) print substr(own, 2)
      }')
  [ -z "$own" ] || taskset -c "$own" true 2> /dev/null || own=
fi
trap 'stopped=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' USR1 TERM INT
exec 3<&0
# taskset would say that it is the one that failed.
command -v -- "$1" > /dev/null 2>&1 || own=
(trap '' USR1; exec ${own:+taskset -c "$own"} "$@") <&3 3<&- &
child=$!
exec 3<&-
while :; do
  wait "$child" 2> /dev/null # the shell would say "Killed"
  status=$?
  kill -0 "$child" 2>/dev/null || break
done
# 75: stopped by a signal with everything saved, which is no failure.
if [ -z "$stopped" ] && [ "$status" -ne 0 ] && [ "$status" -ne 75 ]; then
  who="tessera: rank ${OMPI_COMM_WORLD_RANK:-?} on host $(hostname)"
  signal=$((status - 128)) name=
  # A program may exit with more than 128 itself, which is no signal's number then.
  [ "$signal" -le 0 ] || name=$(kill -l "$signal" 2> /dev/null) || name=
  if [ -n "$name" ]; then
    why=
    [ "$signal" -ne 9 ] || why="; when nobody sent it, the system was short of memory (see dmesg)"
    echo "$who was killed by signal $signal (SIG$name)$why" >&2
  else
    echo "$who ended with exit status $status" >&2
  fi
fi
# A rank that was asked to end has not done its work, unless it says so (75).
[ -n "$stopped" ] && [ "$status" -ne 75 ] || [ ! -w "$ends" ] || echo "$status ${OMPI_COMM_WORLD_SIZE:-1}" >> "$ends" # run_ranks.h
exit "$status")sh";

} // namespace tessera::cli
