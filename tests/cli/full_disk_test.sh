#!/usr/bin/env bash
# A disk that fills up while training: the failed save is a warning, training goes
# on, the checkpoint before is whole; a last save that fails is a failed run, and a
# disk without room for one checkpoint is refused at the start. Usage: full_disk_test.sh PROGRAM REPOSITORY
# Needs a mount namespace of its own; exit status 77 (skipped) without one.
set -euo pipefail
tessera=$1
repository=$2
if [ -z "${FULL_DISK_INSIDE:-}" ]; then
  namespace=(unshare -m)
  [ "$(id -u)" = 0 ] || namespace=(unshare -r -m)
  if ! "${namespace[@]}" mount -t tmpfs none /mnt 2> /dev/null; then
    echo "skipped: no file system can be mounted here"
    exit 77
  fi
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  FULL_DISK_INSIDE=$work "${namespace[@]}" "$0" "$@"
  exit
fi
cd "$FULL_DISK_INSIDE"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# Room for one checkpoint of gpt-tiny (three f32 numbers for each of 0.39 M
# parameters, 4.7 MB) and not for two.
mkdir disk
mount -t tmpfs -o size=7m none disk
"$tessera" data prepare --output data --vocab-size 400 \
  --text "$repository"/README.md "$repository"/docs/*.md > prepare.txt
cat > job.json <<JSON
{
  "parallel": {"pipeline_parallel_degree": 2, "microbatches": 2, "timeout_seconds": 60},
  "model": {"name": "gpt-tiny", "options": {"dropout": 0.1}},
  "data": {"directory": "data", "sequence": 16, "batch": 8},
  "checkpoint": {"directory": "disk/checkpoints", "every": 2},
  "steps": 6, "log_every": 1
}
JSON
reason() { grep -A1 "$1" train.txt | grep -q "rank [01]: .*No space left on device"; }
# Errors of the thread that writes beside training are those of the run as well.
for background in true false; do
  rm -rf disk/checkpoints
  status=0
  "$tessera" launch -n 2 -- "$tessera" train job.json \
      --set "checkpoint.background=$background" > train.txt 2>&1 || status=$?
  [ "$status" = 1 ] || fail "status $status after a last save that failed: $(cat train.txt)"
  grep -q "^saved disk/checkpoints/step_2" train.txt || fail "no first save: $(cat train.txt)"
  reason "^warning: not saved, training goes on: .*\"step_4\"" || fail "no warning: $(cat train.txt)"
  reason "^tessera: the run failed: its last state, after step 6, was not saved: " ||
    fail "the end is not said to have failed: $(cat train.txt)"
  grep -q "^step 6/6" train.txt || fail "it did not come to the end: $(cat train.txt)"
  left=$(find disk/checkpoints -mindepth 1 -maxdepth 1 -printf '%f ')
  case " $left" in
    *saving*) fail "half a checkpoint stays and fills the disk: $left" ;;
  esac
done
status=0
"$tessera" launch -n 2 -- "$tessera" train job.json --resume > refused.txt 2>&1 || status=$?
[ "$status" = 2 ] || fail "status $status without room: $(cat refused.txt)"
grep -q "'checkpoint.directory' disk/checkpoints has .* MiB free; one checkpoint of this model takes" \
  refused.txt || fail "no room: $(cat refused.txt)"
if grep -q "^resumed\|^step" refused.txt; then fail "found too late: $(cat refused.txt)"; fi
mount -o remount,size=20m disk
"$tessera" launch -n 2 -- "$tessera" train job.json --resume --steps 3 > resume.txt 2>&1 ||
  fail "it does not resume: $(cat resume.txt)"
grep -q "resumed from disk/checkpoints/step_2" resume.txt || fail "resumed: $(cat resume.txt)"
echo "all as expected"
