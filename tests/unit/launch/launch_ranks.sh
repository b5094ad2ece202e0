#!/usr/bin/env bash
# usage: launch_ranks.sh PROGRAM      PROGRAM: tessera
# What a user sees of ranks that end, fail, are killed, or are asked to end.
set -uo pipefail

launch() { timeout 60 "$PROGRAM" launch "$@"; }
PROGRAM=$1
work=$(mktemp -d)
export TMPDIR=$work/tmp
mkdir "$TMPDIR"
trap 'rm -rf "$work"' EXIT
failures=0
expect() { # what, wanted pattern, text
  if ! grep -qE -- "$2" <<< "$3"; then
    echo "FAILED: $1: wanted '$2' in:"
    sed 's/^/    /' <<< "$3"
    failures=$((failures + 1))
  fi
}
host=$(hostname)

out=$(launch -n 2 -- sh -c 'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE, $OMP_NUM_THREADS threads"' 2>&1)
status=$?
expect "two ranks end well" '^0$' "$status"
expect "rank 0 runs" 'rank 0 of 2, [0-9]+ threads' "$out"
expect "rank 1 runs" 'rank 1 of 2' "$out"

out=$(launch -n 2 -- sh -c '[ "$OMPI_COMM_WORLD_RANK" = 0 ] && sleep 50; exit 3' 2>&1)
status=$?
expect "the program's status is the launcher's" '^3$' "$status"
expect "who failed" "^tessera: rank 1 on host $host ended with exit status 3\$" "$out"
expect "one message" '^1$' "$(grep -c 'tessera: rank' <<< "$out")"

begin=$SECONDS
out=$(launch -n 3 -- sh -c 'echo $$ >> '"$work"'/pids; [ "$OMPI_COMM_WORLD_RANK" = 2 ] && sleep 1 && kill -9 $$; exec sleep 50' 2>&1)
status=$?
expect "128 + 9" '^137$' "$status"
expect "who was killed" "^tessera: rank 2 on host $host was killed by signal 9 \(SIGKILL\); when nobody sent it, the system was short of memory" "$out"
expect "mpirun's own words do not bury it" '^2$' "$(grep -c . <<< "$out")"
expect "one message" '^1$' "$(grep -c 'tessera: rank' <<< "$out")"
expect "the others end within 10 s" '^[0-9]$' "$((SECONDS - begin))"
expect "three ranks had run" '^3$' "$(wc -l < "$work/pids" | tr -d ' ')"
while read -r pid; do
  for _ in $(seq 50); do # what was killed is there until it is reaped
    kill -0 "$pid" 2> /dev/null || break
    sleep 0.1
  done
  if kill -0 "$pid" 2> /dev/null; then
    expect "no process is left" '^none$' "$pid"
  fi
done < "$work/pids"

# A SIGTERM for the launcher reaches the ranks as SIGTERM, and they have time.
cat > "$work/save.sh" <<'S'
trap 'sleep 2; echo "rank $OMPI_COMM_WORLD_RANK saved"; exit 0' TERM
echo ready
while :; do sleep 0.1; done
S
timeout 60 "$PROGRAM" launch -n 2 -- sh "$work/save.sh" > "$work/out" 2>&1 &
launcher=$!
for _ in $(seq 200); do
  [ "$(grep -c ready "$work/out")" = 2 ] && break
  sleep 0.1
done
kill -TERM "$(pgrep -P "$launcher")"
wait "$launcher"
status=$?
expect "a run that saved ends well" '^0$' "$status"
expect "rank 0 saves" 'rank 0 saved' "$(cat "$work/out")"
expect "rank 1 saves" 'rank 1 saved' "$(cat "$work/out")"

out=$(echo "a line" | launch -n 1 -- cat 2>&1)
expect "rank 0 reads the input" '^a line$' "$out"

cat > "$work/config.json" <<'S'
{"mpi": {"processes_per_host": 2, "custom_mpi_options": "--mca btl_vader_single_copy_mechanism none -x MARK=seen"}}
S
out=$(launch --config "$work/config.json" -- sh -c 'echo "$OMPI_COMM_WORLD_SIZE $MARK"' 2>&1)
expect "the configuration's ranks and options" '^2 seen$' "$out"
out=$(launch --config "$work/config.json" --dry-run -- prog 2>&1)
expect "an option stands once" '^1$' "$(grep -o btl_vader_single_copy_mechanism <<< "$out" | wc -l | tr -d ' ')"

out=$(launch -n 1 -- ./no-such-program 2>&1)
status=$?
expect "a program that is not there" '^2$' "$status"
expect "is named" "cannot run './no-such-program': No such file" "$out"
out=$(launch -n 1 -- no-such-program 2>&1)
status=$?
expect "a name without a program" '^127$' "$status"
expect "is told by the shell" "no-such-program: not found" "$out"

# mpirun ends with 1 where it missed that a rank ended well: the ranks' word counts, and only theirs.
mkdir "$work/bin"
printf '#!/bin/sh\n"%s" "$@"\nexit 1\n' "$(command -v mpirun)" > "$work/bin/mpirun"
chmod +x "$work/bin/mpirun"
out=$(PATH="$work/bin:$PATH" launch -n 2 -- sh -c 'echo "[$TESSERA_RANK_ENDS]"' 2>&1)
status=$?
expect "ranks that ended well" '^0$' "$status"
expect "are a run that is done" '^tessera: mpirun ended with exit status 1 although every rank ended with 0' "$out"
expect "the file is none of the program's business" '^2$' "$(grep -c '^\[\]$' <<< "$out")"
out=$(PATH="$work/bin:$PATH" launch -n 2 -- sh -c 'exit "$OMPI_COMM_WORLD_RANK"' 2>&1)
status=$?
expect "a rank that did not" '^1$' "$status"
expect "is a run that failed" '^tessera: the run ended with exit status 1$' "$out"
cat > "$work/bin/mpirun" << S
#!/bin/sh
"$(command -v mpirun)" "\$@" &
sleep 2
kill -USR1 \$!
wait
exit 1
S
out=$(PATH="$work/bin:$PATH" launch -n 2 -- sh -c 'trap "exit 0" TERM; while :; do sleep 0.1; done' 2>&1)
status=$?
expect "ranks that were asked to end are not done, with status 0 either" '^1$' "$status"

# Ranks that were asked to end and say that all is saved: mpirun may crash all the same.
cat > "$work/bin/mpirun" << S
#!/bin/sh
"$(command -v mpirun)" "\$@" &
child=\$!
trap 'kill -USR1 \$child' USR1
while kill -0 \$child 2> /dev/null; do wait \$child; done
exit 139
S
for status_of_ranks in 75 0; do
  PATH="$work/bin:$PATH" "$PROGRAM" launch -n 2 -- \
    sh -c "trap 'exit $status_of_ranks' TERM; echo ready; while :; do sleep 0.1; done" > "$work/out" 2>&1 &
  launcher=$!
  for _ in $(seq 200); do
    [ "$(grep -c ready "$work/out")" = 2 ] && break
    sleep 0.1
  done
  kill -TERM $launcher
  wait $launcher
  status=$?
  if [ "$status_of_ranks" = 75 ]; then
    expect "ranks that saved everything" '^75$' "$status"
    expect "can be resumed" 'mpirun ended with exit status 139 after every rank had stopped' "$(cat "$work/out")"
  else
    expect "ranks that say nothing of it" '^139$' "$status"
  fi
done

# A host file with this machine: its slots, and more ranks than slots.
echo "localhost slots=2" > "$work/hosts"
for ranks in 2 3; do
  out=$(launch -n $ranks --hostfile "$work/hosts" -- sh -c 'echo "of $OMPI_COMM_WORLD_SIZE on $(hostname)"' 2>&1)
  status=$?
  expect "$ranks ranks on the host file's machine" '^0$' "$status"
  expect "all $ranks run here" "^$ranks\$" "$(grep -c "^of $ranks on $host\$" <<< "$out")"
done
out=$(launch --hostfile "$work/hosts" --config "$work/config.json" -- sh -c 'echo "of $OMPI_COMM_WORLD_SIZE"' 2>&1)
expect "processes_per_host on each host of the file" '^2$' "$(grep -c '^of 2$' <<< "$out")"
printf 'localhost slots=2\n\nlocalhost:1\n' > "$work/twice"
out=$(launch -n 2 --hostfile "$work/twice" -- true 2>&1)
status=$?
expect "a host with two numbers of slots" '^2$' "$status"
expect "is named with its lines" "twice: line 3: the host 'localhost' has its slots on line 1 already" "$out"
out=$(launch -n 2 --hostfile "$work/none" -- true 2>&1)
expect "a host file that is not there" "cannot read '$work/none': No such file" "$out"

# A job that fails is started again, with its number.
cat > "$work/fails_twice.sh" <<'S'
echo "start ${TESSERA_RESTART:-0}"
[ "${TESSERA_RESTART:-0}" = 0 ] && kill -9 $$
[ "${TESSERA_RESTART:-0}" = 1 ] && exit 5
exit 0
S
out=$(launch -n 1 --max-restarts 3 -- sh "$work/fails_twice.sh" 2>&1)
status=$?
expect "the third start ends well" '^0$' "$status"
expect "three starts" '^start 0 start 1 start 2 $' "$(grep '^start' <<< "$out" | tr '\n' ' ')"
expect "first message" '^tessera: the run ended with exit status 137; restart 1 of 3$' "$out"
expect "second message" '^tessera: the run ended with exit status 5; restart 2 of 3$' "$out"
out=$(launch -n 1 --max-restarts 1 -- sh "$work/fails_twice.sh" 2>&1)
status=$?
expect "restarts have an end" '^5$' "$status"
out=$(launch -n 1 --max-restarts 3 -- sh -c 'echo start; exit 2' 2>&1)
status=$?
expect "wrong usage is not repeated" '^2 1$' "$status $(grep -c '^start' <<< "$out")"

expect "no file is left" '^0$' "$(find "$TMPDIR" -name 'tessera-*' | wc -l)"

[ "$failures" -eq 0 ] && echo "all as expected"
exit "$failures"
