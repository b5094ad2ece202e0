#!/usr/bin/env bash
# A disk that fills up while training: the failed save is a warning, training goes
# on, the checkpoint before loads. Usage: full_disk_test.sh PROGRAM REPOSITORY
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
"$tessera" launch -n 2 -- "$tessera" train job.json > train.txt 2>&1 ||
  fail "a full disk ended the run: $(cat train.txt)"
grep -q "^saved disk/checkpoints/step_2" train.txt || fail "no first save: $(cat train.txt)"
for step in 4 6; do
  grep -A1 "^warning: not saved, training goes on: .*\"step_$step\"" train.txt |
    grep -q "rank [01]: .*No space left on device" ||
    fail "no warning for step $step: $(cat train.txt)"
done
grep -q "^step 6/6" train.txt || fail "it did not come to the end: $(cat train.txt)"
left=$(find disk/checkpoints -mindepth 1 -maxdepth 1 -printf '%f ')
case " $left" in
  *saving*) fail "half a checkpoint stays and fills the disk: $left" ;;
esac
"$tessera" launch -n 2 -- "$tessera" train job.json --resume --steps 3 > resume.txt 2>&1 ||
  fail "it does not resume: $(cat resume.txt)"
grep -q "resumed from disk/checkpoints/step_2" resume.txt || fail "resumed: $(cat resume.txt)"
echo "all as expected"
