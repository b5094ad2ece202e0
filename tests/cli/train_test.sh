#!/usr/bin/env bash
# The program from text to report: prepare, train, stop, go on, load under
# another layout, generate, report. Usage: train_test.sh PROGRAM REPOSITORY
set -euo pipefail
tessera=$1
repository=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

"$tessera" data prepare --output data --vocab-size 400 \
  --text "$repository"/README.md "$repository"/docs/*.md > prepare.txt

job() { # name, pipeline degree, steps, full checkpoints, more parallel keys
  cat > "$1.json" <<JSON
{
  "parallel": {"pipeline_parallel_degree": $2, "ddp": true, "microbatches": 2, "reproducible": true, "timeout_seconds": 60${5:-}},
  "model": {"name": "gpt-tiny", "options": {"dropout": 0.1}},
  "data": {"directory": "data", "sequence": 16, "batch": 8},
  "optimizer": {"learning_rate": 2e-3, "warmup_steps": 2},
  "checkpoint": {"directory": "$1", "every": 3, "full": ${4:-false}},
  "validation": {"every": 3, "batches": 1},
  "sample": {"prompt": "The rank", "tokens": 5},
  "steps": $3, "log_every": 1
}
JSON
}
train() { "$tessera" launch -n 4 -- "$tessera" train "$@"; }
state_of() { grep "saved .*/step_$2," "$1" | sed 's/.*state //'; }

job whole 2 6
train whole.json --log whole.jsonl --timeline timeline.json > whole.txt
job cut 2 6
train cut.json --steps 3 > cut.txt
train cut.json --resume --log cut.jsonl > resumed.txt
grep -q "resumed from .*step_3" resumed.txt || fail "did not resume: $(cat resumed.txt)"
[ -n "$(state_of whole.txt 6)" ] || fail "no state printed: $(cat whole.txt)"
[ "$(state_of whole.txt 6)" = "$(state_of resumed.txt 6)" ] ||
  fail "an interrupted run ends elsewhere: $(cat whole.txt resumed.txt)"

# Quiet: a run with nothing to complain of says nothing.
said=$("$tessera" launch -n 4 -- "$tessera" -q train cut.json --resume)
[ -z "$said" ] || fail "-q: $said"

# Static and fast mode: one verifying and one recorded step, four that repeat it.
job repeated 2 6 false ', "static_mode": true, "static_mode_steps": 1, "fast_mode": true'
train repeated.json --log repeated.jsonl > repeated.txt
python3 - whole.jsonl repeated.jsonl <<'PY' || fail "static and fast mode: $(cat repeated.txt)"
import json, sys
dynamic, repeated = ([line["loss"] for line in map(json.loads, open(name)) if "loss" in line]
                     for name in sys.argv[1:])
assert len(dynamic) == len(repeated) >= 6, (dynamic, repeated)
for one, other in zip(dynamic, repeated):
    assert abs(one - other) <= 1e-5 * abs(one), (dynamic, repeated)
PY

# The same checkpoint under four pipeline ranks, and one that is whole.
cp -r cut wide
job wide 4 8 true
train wide.json --resume > wide.txt
grep -q "resumed from wide/step_6" wide.txt || fail "other layout: $(cat wide.txt)"
"$tessera" generate --checkpoint wide/step_8/model.safetensors \
  --tokenizer data/tokenizer.model --prompt "The rank" --tokens 4 > generated.txt
grep -q "^The rank" generated.txt || fail "generate: $(cat generated.txt)"

# A second run must not mix with the first one's checkpoints.
if train whole.json > again.txt 2>&1; then fail "old checkpoints were overwritten"; fi
grep -q -- "--resume" again.txt || fail "no advice: $(cat again.txt)"

# A torn newest checkpoint is named and passed over.
truncate -s -100 wide/step_8/model.safetensors
train wide.json --resume --steps 8 > torn.txt
grep -q "warning: .*step_8" torn.txt || fail "torn checkpoint not named: $(cat torn.txt)"
grep -q "resumed from wide/step_6" torn.txt || fail "torn: $(cat torn.txt)"

# A signal ends the run with everything saved.
job long 2 100000
"$tessera" launch -n 4 -- "$tessera" train long.json > long.txt 2>&1 &
launcher=$!
for _ in $(seq 300); do
  grep -q "step 2/" long.txt && break
  sleep 0.1
done
kill -TERM "$launcher"
status=0
wait "$launcher" || status=$?
[ "$status" = 75 ] || fail "SIGTERM ends with $status: $(tail -n 5 long.txt)"
grep -q "stopped by a signal" long.txt || fail "SIGTERM: $(tail -n 5 long.txt)"
grep -q "^saved long/" long.txt || fail "SIGTERM did not save: $(tail -n 5 long.txt)"

"$tessera" report whole.jsonl --timeline timeline.json --output report.html \
  --chrome-trace trace.json > report.txt
grep -q "<svg" report.html || fail "no pictures in the report"
grep -q traceEvents trace.json || fail "no trace events"

# Errors of a job file come together.
echo '{"steps": 0, "modle": {}, "data": {"batch": "x"}}' > bad.json
if "$tessera" train bad.json --check > bad.txt 2>&1; then fail "a bad job passed"; fi
for word in steps modle data.batch; do
  grep -q "$word" bad.txt || fail "'$word' not in: $(cat bad.txt)"
done
echo "all as expected"
