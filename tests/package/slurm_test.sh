#!/usr/bin/env bash
# usage: slurm_test.sh SOURCE
# packaging/slurm/tessera.sbatch beside a scontrol and a tessera that only write down what they are
# asked: hosts and ranks, the way of SIGTERM, and what follows from the exit status.
set -euo pipefail
script=$1/packaging/slurm/tessera.sbatch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "slurm_test: $*" >&2; exit 1; }
cd "$work"
mkdir bin
cat > bin/scontrol <<'SCRIPT'
#!/bin/sh
if [ "$1" = show ]; then printf '%s\n' a1 a2 b7; else echo "$@" >> "$WORK/requeued"; fi
SCRIPT
cat > bin/tessera <<'SCRIPT'
#!/bin/sh
echo "$@" > "$WORK/asked"
cp "$5" "$WORK/hosts"
env | grep -E '^(OMP|OMPI_MCA)_' | sort > "$WORK/variables"
trap 'echo TERM >> "$WORK/signals"; kill "$sleeper"; exit 75' TERM
if [ -n "$WAITS" ]; then sleep 60 & sleeper=$!; touch "$WORK/runs"; wait "$sleeper"; fi
exit "$STATUS"
SCRIPT
chmod +x bin/*
run() { # replaces this shell: call it in one of its own
  exec env PATH="$work/bin:$PATH" WORK="$work" TMPDIR="$work" SLURM_JOB_NODELIST='a[1-2],b7' SLURM_JOB_ID=17 \
    SLURM_CPUS_PER_TASK=6 OMP_NUM_THREADS= "$@" bash "$script" job.json --set steps=5
}
status_of() { local status=0; (run "$@") > out 2>&1 || status=$?; echo "$status"; }

[ "$(status_of SLURM_TASKS_PER_NODE='4(x2),3' STATUS=0 WAITS=)" = 0 ] || fail "$(cat out)"
[ "$(cat hosts)" = "$(printf '%s\n' 'a1 slots=4' 'a2 slots=4' 'b7 slots=3')" ] || fail "hosts: $(cat hosts)"
[[ "$(cat asked)" == "launch -n 11 --hostfile $work/"*" --grace 100 -- tessera train job.json --set steps=5 --resume" ]] ||
  fail "asked: $(cat asked)"
grep -qx 'OMP_NUM_THREADS=6' variables || fail "variables: $(cat variables)"
[ ! -e requeued ] || fail "a job that ended was put into the queue again"
[ -z "$(find . -name 'tessera-hosts.*')" ] || fail "the list of hosts was left behind"

[ "$(status_of SLURM_TASKS_PER_NODE='4(x3)' STATUS=3 WAITS=)" = 3 ] || fail "status 3 became another"
[ ! -e requeued ] || fail "a job that failed was put into the queue again"
[ "$(status_of SLURM_TASKS_PER_NODE='4(x2)' STATUS=0 WAITS=)" = 1 ] || fail "two counts for three hosts"
grep -q '3 hosts, but tasks for 2' out || fail "$(cat out)"

# Slurm asks the script alone to end.
run SLURM_TASKS_PER_NODE='1(x3)' STATUS=0 WAITS=yes > out 2>&1 &
job=$!
for _ in $(seq 100); do [ -e runs ] && break; sleep 0.1; done
kill -TERM "$job"
status=0
wait "$job" || status=$?
[ "$status" = 75 ] || fail "status $status after SIGTERM: $(cat out)"
[ "$(cat signals)" = TERM ] || fail "the launcher was not asked to end once: $(cat signals)"
[ "$(cat requeued)" = 'requeue 17' ] || fail "requeued: $(cat requeued)"
