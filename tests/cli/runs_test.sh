#!/usr/bin/env bash
# What must not be lost: folders that cannot be written, two runs in one place, other data,
# signals, leftovers. Usage: runs_test.sh PROGRAM REPOSITORY
set -euo pipefail
tessera=$1
repository=$2
. "$repository"/tests/cli/runs_support.sh
prepare data

# Near names and short messages.
echo '{"data": {"directory": "data"}}' > plain.json
[ "$(status_of near.txt "$tessera" train plain.json --resum)" = 2 ] || fail "near: $(cat near.txt)"
grep -q "did you mean --resume?" near.txt || fail "near: $(cat near.txt)"
[ "$(status_of short.txt "$tessera" launch -n 0 -- true)" = 2 ] || fail "short: $(cat short.txt)"
grep -q "must be a number above 0, found '0'" short.txt || fail "short: $(cat short.txt)"

# A folder that cannot be written is found before the model is built: a file is in its way,
# and, as root may write everywhere, /proc stands for a file system that refuses.
touch in_the_way
for folder in in_the_way /proc/none; do
  job unwritable 1e-3 3 "$two_stages" ""
  sed -i "s|\"directory\": \"unwritable\"|\"directory\": \"$folder\"|" unwritable.json
  [ "$(status_of unwritable.txt train unwritable.json)" = 2 ] || fail "$folder: $(cat unwritable.txt)"
  grep -q "'checkpoint.directory' $folder cannot be written" unwritable.txt ||
    fail "$folder: $(cat unwritable.txt)"
  if grep -q "parameters" unwritable.txt; then fail "found too late: $(cat unwritable.txt)"; fi
  [ "$(grep -c 'cannot be written' unwritable.txt)" = 1 ] || fail "said twice: $(cat unwritable.txt)"
done

# Two runs in one folder, then in one log; the first one goes on undisturbed.
job long 1e-3 100000 "$two_stages" ""
"$tessera" launch -n 2 -- "$tessera" train long.json --log long.jsonl > long.txt 2>&1 &
launcher=$!
started=$launcher
wait_for "^step 2/" long.txt
[ "$(status_of second.txt train long.json --resume)" = 2 ] || fail "two runs: $(cat second.txt)"
grep -q "'checkpoint.directory' long is in use by another run: process .* on host $(hostname), started" \
  second.txt || fail "two runs: $(cat second.txt)"
job other 1e-3 2 "$two_stages" ""
[ "$(status_of second.txt train other.json --log long.jsonl)" = 2 ] || fail "one log: $(cat second.txt)"
grep -q "log 'long.jsonl' is in use" second.txt || fail "one log: $(cat second.txt)"

# Ctrl-C: everything is saved, 75; the locks are gone.
kill -INT "$launcher"
status=0
wait "$launcher" || status=$?
started=
[ "$status" = 75 ] || fail "Ctrl-C under launch ends with $status: $(tail -n 5 long.txt)"
grep -q "can be resumed (exit status 75)" long.txt || fail "75: $(tail -n 5 long.txt)"
if grep -q "^---\|mpirun\|ended with exit" long.txt; then fail "noise: $(tail -n 20 long.txt)"; fi
[ ! -e long/.lock ] && [ ! -e long.jsonl.lock ] || fail "locks stay: $(ls -A long .)"

# A new run keeps the log of an earlier one.
cp long.jsonl earlier.jsonl
"$tessera" launch -n 2 -- "$tessera" train other.json --log long.jsonl > kept.txt 2>&1 || fail "$(cat kept.txt)"
grep -q "the log of an earlier run is kept as long.jsonl.1" kept.txt || fail "kept: $(cat kept.txt)"
cmp earlier.jsonl long.jsonl.1 || fail "the earlier log has changed"

# Killed: the lock that stays behind is recognised.
job alone 1e-3 100000 "" ""
"$tessera" train alone.json > alone.txt 2>&1 &
program=$!
started=$program
wait_for "^step 2/" alone.txt
kill -KILL "$program"
wait "$program" 2> /dev/null || true
[ -e alone/.lock ] || fail "no lock of the killed run: $(ls -A alone)"

# A plain run: Ctrl-C saves at the end of the step, and the run goes on from there.
"$tessera" train alone.json --resume > alone.txt 2>&1 &
program=$!
started=$program
wait_for "^step .*tokens/s" alone.txt
grep -q "took over a lock that was left behind by process" alone.txt || fail "lock: $(cat alone.txt)"
# bash starts background jobs with SIGINT ignored; the program listens all the same.
kill -INT "$program"
status=0
wait "$program" || status=$?
started=
[ "$status" = 75 ] || fail "Ctrl-C of a plain run ends with $status: $(tail -n 5 alone.txt)"
grep -q "^stopped by a signal" alone.txt || fail "Ctrl-C: $(tail -n 5 alone.txt)"
last=$(cat alone/newest)
[ "$(status_of resumed.txt "$tessera" train alone.json --resume --steps $((${last#step_} + 1)))" = 0 ] ||
  fail "resume: $(cat resumed.txt)"
grep -q "^resumed from alone/$last" resumed.txt || fail "resume: $(cat resumed.txt)"

# Other data: prepare refuses, resume names both hashes, a flag accepts.
[ "$(status_of prepare.txt "$tessera" data prepare --output data --vocab-size 400 \
  --text "$repository"/docs/*.md "$repository"/README.md)" = 2 ] || fail "prepare: $(cat prepare.txt)"
grep -q "holds other data.*--force" prepare.txt || fail "prepare: $(cat prepare.txt)"
prepare data --force --text "$repository"/README.md
steps=$((${last#step_} + 2))
[ "$(status_of changed.txt "$tessera" train alone.json --resume --steps $steps)" = 2 ] ||
  fail "other data: $(cat changed.txt)"
grep -Eq "train.tokens: the checkpoint has [0-9a-f]{16}, data has [0-9a-f]{16}" changed.txt ||
  fail "other data: $(cat changed.txt)"
[ "$(status_of changed.txt "$tessera" train alone.json --resume --accept-other-data --steps $steps)" = 0 ] ||
  fail "accepted data: $(cat changed.txt)"
grep -q "^warning: going on with other data" changed.txt || fail "accepted data: $(cat changed.txt)"

# A bad line of a log costs that line.
{ head -n 2 long.jsonl; echo "{torn"; tail -n +3 long.jsonl; } > bad.jsonl
"$tessera" report bad.jsonl --output report.html > report.txt
grep -q "left out: 1; the first: bad.jsonl: line 3: not valid JSON" report.txt || fail "log: $(cat report.txt)"

# What the text goes to is full, or closed.
job whole 1e-3 2 "$two_stages" ""
sed -i 's/"every": 1/"full": true, "every": 1/' whole.json
train whole.json > whole.txt 2>&1 || fail "whole: $(cat whole.txt)"
generate() {
  "$tessera" generate --checkpoint whole/step_2/model.safetensors --config whole/step_2/config.json \
    --tokenizer data/tokenizer.model --prompt "The rank" --tokens "$1"
}
generate 8 > generated.txt
status=0
generate 8 > /dev/full 2> full.txt || status=$?
[ "$status" = 1 ] || fail "a full disk gives $status"
grep -q "standard output cannot be written: No space left" full.txt || fail "full: $(cat full.txt)"
status=$( (generate 100000 2> closed.txt; echo $? >&3) 3>&1 > >(head -c 9 > first.txt))
[ "$status" = 1 ] || fail "a closed pipe gives $status: $(cat closed.txt)"
grep -q "standard output cannot be written: Broken pipe" closed.txt || fail "closed: $(cat closed.txt)"
[ "$(cat first.txt)" = "$(head -c 9 generated.txt)" ] || fail "stream: $(cat first.txt)"

# Leftovers of a killed run: doctor shows them, launch removes them.
export TMPDIR=$work/tmp
left=$TMPDIR/tessera-trials-99999999-abc # beyond the largest process number
mkdir -p "$left"
touch -d "1 hour ago" "$left"
OMPI_MCA_orte_tmpdir_base=/tmp "$tessera" doctor > doctor.txt 2>&1 || true
grep -q "1 leftover of killed runs" doctor.txt || fail "doctor: $(cat doctor.txt)"
OMPI_MCA_orte_tmpdir_base=/tmp "$tessera" launch -n 1 -- true > swept.txt 2>&1
grep -q "tessera: removed 1 leftover" swept.txt || fail "swept: $(cat swept.txt)"
[ ! -e "$left" ] || fail "it is still there"
echo "all as expected"
