#!/usr/bin/env bash
# From the machine to a run: probe, plan for a preset and a job, train what was
# planned, plan in place, trials, and what bad input is told.
# Usage: plan_test.sh PROGRAM REPOSITORY
set -euo pipefail
tessera=$1
repository=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMP_NUM_THREADS=1

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
refused() { # expected text, command...
  local expected=$1
  shift
  if "$@" > refused.txt 2>&1; then fail "accepted: $*"; fi
  grep -q -- "$expected" refused.txt || fail "expected '$expected': $(cat refused.txt)"
}

"$tessera" launch -n 2 -- "$tessera" probe --quick -o cluster.json > probe.txt
grep -q "2 ranks that compute like" probe.txt || fail "probe: $(cat probe.txt)"
grep -q "best of 3 rounds" probe.txt || fail "rounds: $(cat probe.txt)"
grep -q '"compute_spread"' cluster.json || fail "spread: $(cat cluster.json)"

"$tessera" data prepare --output data --vocab-size 400 --text "$repository"/README.md "$repository"/docs/*.md > /dev/null
cat > job.json <<'JSON'
{"parallel": {"timeout_seconds": 60, "seed": 7},
 "model": {"name": "gpt-tiny", "options": {"dropout": 0}},
 "data": {"directory": "data", "sequence": 16, "batch": 8},
 "checkpoint": {"directory": "saved"},
 "steps": 2, "log_every": 1}
JSON

# For programs: the same strategies as JSON, and nothing else on the output.
"$tessera" plan --job job.json --cluster-file cluster.json --json -o from_json.json > plans.json
"$tessera" plan --job job.json --cluster-file cluster.json > plans.txt
python3 - <<'PY' || fail "plan --json: $(cat plans.json)"
import json, re
plans = json.load(open("plans.json"))
table = [line.split() for line in open("plans.txt") if re.match(r" +\d+ +[0-9.]+ ", line)]
assert len(plans["strategies"]) == len(table) > 1, (len(plans["strategies"]), len(table))
for plan, row in zip(plans["strategies"], table):
    assert abs(plan["seconds"] - float(row[1])) < 1e-4, (plan["seconds"], row)
    assert abs(plan["needed_bytes"] / 2**30 - float(row[2])) < 0.01, (plan["needed_bytes"], row)
    degrees = [plan[f"{kind}_parallel_degree"] for kind in ("pipeline", "tensor", "reduced_data")]
    assert degrees[0] * degrees[1] * degrees[2] == 2, degrees
    text = " ".join(row)
    assert f"pp {degrees[0]} dp {degrees[2]} tp {degrees[1]}" in text, (degrees, row)
    assert len(plan["stages"]) == degrees[0] and plan["runnable"] == ("only priced" not in text)
    assert plan["microbatches"] * plan["microbatch_size"] * degrees[2] == plans["global_batch_size"] == 8
    assert sum(plan["estimated_parts"].values()) == plan["estimated_seconds"] or abs(
        sum(plan["estimated_parts"].values()) / plan["estimated_seconds"] - 1) < 1e-6, plan
first = next(plan for plan in plans["strategies"] if plan["runnable"])
written = json.load(open("from_json.json"))["parallel"]
assert written.get("pipeline_parallel_degree", 1) == first["pipeline_parallel_degree"], written
PY
refused "--json excludes --trials" "$tessera" plan --job job.json --json --trials 1

# What a data folder holds, for people and programs.
"$tessera" data show data | grep -q "vocabulary 400$" || fail "data show: $("$tessera" data show data)"
"$tessera" data show data --json > data.json
python3 -c '
import json
shown, said = json.load(open("data.json")), json.load(open("data/data.json"))
for key in ("source", "vocab_size", "train_tokens", "validation_tokens", "hashes"):
    assert shown[key] == said[key], key
' || fail "data show --json: $(cat data.json)"
cp -r data changed
printf x | dd of=changed/train.tokens bs=1 seek=100 conv=notrunc status=none
refused "not whole" "$tessera" data show changed
cp -r data swapped
cp data/validation.tokens swapped/train.tokens
refused "not whole" "$tessera" data show swapped
mkdir nothing
refused "has no data.json" "$tessera" data show nothing

# What is planned runs, with the job's other keys as they were.
"$tessera" plan --job job.json --cluster-file cluster.json --explain 1 -o planned.json > plan.txt
grep -q "executed event by event" plan.txt || fail "plan: $(cat plan.txt)"
grep -q '"seed": 7' planned.json || fail "the seed is lost: $(cat planned.json)"
"$tessera" launch -n 2 -- "$tessera" train planned.json > planned.txt
grep -q "saved/step_2" planned.txt || fail "planned: $(cat planned.txt)"

sed 's/"seed": 7/"seed": 7, "microbatches": 8, "active_microbatches": 1, "pipeline": "simple"/' job.json > said.json
"$tessera" plan --job said.json --cluster-file cluster.json -o replaced.json > replaced.txt
grep -q "^the plan replaces what the job says of: .*active_microbatches" replaced.txt ||
  fail "not said: $(cat replaced.txt)"

# Trials: predicted beside measured, kept in a file; failures are survived.
"$tessera" plan --job job.json --cluster-file cluster.json --trials 3 --trial-steps 3 \
  --calibration-file kept.json -o winner.json > trials.txt
grep -q "^winner: [123]" trials.txt || fail "trials: $(cat trials.txt)"
[ "$(grep -c measured_s kept.json)" = 3 ] || fail "kept: $(cat kept.json)"
"$tessera" train winner.json --check > /dev/null
"$tessera" plan --job job.json --cluster-file cluster.json --calibrate kept.json --keep 1 |
  grep -q "calibrated by" || fail "not calibrated"
# Where trials found exchanges a thousand times slower than computation, a strategy with few comes first.
echo '{"factors": {"compute": 0.001, "exchange": 1, "waiting": 0.001}}' > slow_links.json
"$tessera" plan --job job.json --cluster-file cluster.json --calibrate slow_links.json --explain 1 > slow_links.txt
grep -q "^     1 .*pp 2  dp 1  tp 1 " slow_links.txt || fail "not ranked anew: $(cat slow_links.txt)"
grep -q "an iteration, calibrated by trials" slow_links.txt || fail "explain: $(cat slow_links.txt)"
refused "leave --objective out" "$tessera" plan --job job.json --cluster-file cluster.json \
  --calibrate kept.json --objective cost
refused "all 1 trials failed" "$tessera" plan --job job.json --cluster-file cluster.json \
  --trials 1 --trial-timeout 1 --trial-steps 100000 --calibration-file failed.json
grep -q "did not end in time" failed.json || fail "no reason: $(cat failed.json)"
cp kept.json earlier.json
refused "all 1 trials failed" "$tessera" plan --job job.json --cluster-file cluster.json \
  --trials 1 --trial-timeout 1 --trial-steps 100000 --calibration-file earlier.json
cmp -s kept.json earlier.json || fail "the factors of earlier trials are lost"

# Two replicas of this model need more than a rank may have here, half of it on each rank does not.
# Exchanges decide, so that replicas, which exchange all gradients, come after every pipeline on any machine. (Tensor
# parallelism with microbatches of one sample may come after them: its calls wait for each other, as the probe found.)
sed 's/"dropout": 0/"dropout": 0, "n_embd": 768, "n_layer": 6/; s/"batch": 8/"batch": 4/' job.json > wide.json
(
  ulimit -d 1000000
  "$tessera" plan --job wide.json --cluster-file cluster.json --only-tp 1 --keep 100 --trials 2 \
    --spread-trials --trial-steps 3 --calibration-file memory.json --calibrate slow_links.json
) > memory.txt
grep -q "failed .*dp 2 .*out of memory: .*can't allocate memory" memory.txt || fail "memory: $(cat memory.txt)"
grep -q "^winner: 1$" memory.txt || fail "memory: $(cat memory.txt)"

# An interruption after the first trial: what has ended counts. (A shell ignores
# SIGINT for what it runs in the background, so Python starts it.)
python3 - "$tessera" > interrupted.txt << 'PY' || fail "interruption: $(cat interrupted.txt)"
import signal, subprocess, sys
plan = subprocess.Popen(
    [sys.argv[1], "plan", "--job", "job.json", "--cluster-file", "cluster.json", "--trials", "3",
     "--trial-steps", "60", "--calibration-file", "interrupted.json", "-o", "interrupted_job.json"],
    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
trials = False
for line in plan.stdout:
    print(line, end="")
    if trials and line.split()[:1] == ["1"]:
        plan.send_signal(signal.SIGINT)
    trials = trials or line.startswith("trials of")
sys.exit(plan.wait())
PY
grep -q "interrupted after [12] of 3 trials" interrupted.txt || fail "interrupted: $(cat interrupted.txt)"
grep -q "^winner: [12]" interrupted.txt || fail "no winner: $(cat interrupted.txt)"
"$tessera" train interrupted_job.json --check > /dev/null

# Tensor parallelism: every way is tried, and what is written trains.
"$tessera" plan --job job.json --cluster-file cluster.json --only-tp 2 --trials 4 --spread-trials \
  --trial-steps 3 --keep 100 --calibration-file kept_tp.json -o tp.json > tp.txt
[ "$(grep -c measured_s kept_tp.json)" = 4 ] || fail "tensor parallelism: $(cat tp.txt)"
for kind in speed memory "prescaled batch"; do
  grep -q "tp 2 .*$kind" tp.txt || fail "no $kind among $(cat tp.txt)"
done
grep -q '"tensor_parallel_degree": 2' tp.json || fail "tp.json: $(cat tp.json)"
sed -i 's/"saved"/"saved_tp"/' tp.json
"$tessera" launch -n 2 -- "$tessera" train tp.json > tp_trained.txt
grep -q "saved_tp/step_2" tp_trained.txt || fail "tp: $(cat tp_trained.txt)"
"$tessera" plan --job job.json --cluster-file cluster.json --only-tp 2 --shard-optimizer-state \
  -o shared.json > shared.txt
grep -q '"shard_optimizer_state": true' shared.json || fail "shared.json: $(cat shared.json)"
# A mesh is one of the ways, of a square of four.
python3 - <<'PY'
import json
cluster = json.load(open("cluster.json"))
cluster["nodes"][0]["count"] = 4
json.dump(cluster, open("four.json", "w"))
PY
"$tessera" plan --job job.json --cluster-file four.json --only-tp 4 --keep 1000 > four.txt
for kind in 2d speed memory; do
  grep -q "tp 4 $kind" four.txt || fail "no $kind among $(cat four.txt)"
done

# A job says what is recomputed, a configuration cannot.
refused "prices it but cannot train" "$tessera" plan --job job.json --cluster-file cluster.json \
  --activation-checkpointing --library-config never.json
"$tessera" plan --job job.json --cluster-file cluster.json --activation-checkpointing -o each.json > each.txt
grep -q '"activation_checkpointing": "each"' each.json || fail "recomputation is not written: $(cat each.json)"

# In place. The same losses as one process without a strategy.
losses() { # log
  python3 -c 'import json, sys
print(*[json.loads(line)["loss"] for line in open(sys.argv[1]) if "loss" in line], sep="\n")' "$1"
}
same_losses() { # run, run of one process, largest relative difference: both logged two steps
  [ "$(losses "$1.jsonl" | wc -l)" = 2 ] || fail "$1 logged: $(cat "$1.jsonl")"
  paste <(losses "$1.jsonl") <(losses "$2.jsonl") | awk -v most="$3" '
    { off = $1 > $2 ? $1 - $2 : $2 - $1; if (NF != 2 || !(off <= most * $2)) exit 1 }' ||
    fail "losses of $1 $(losses "$1.jsonl") and of $2 $(losses "$2.jsonl")"
}
sed 's/"parallel": {/"strategy": "auto", &/; s/"saved"/"auto"/' job.json > auto.json
"$tessera" launch -n 2 -- "$tessera" train auto.json --log auto.jsonl > auto.txt
grep -q "strategy auto: .* combinations" auto.txt || fail "auto: $(cat auto.txt)"
grep -q "auto/step_2" auto.txt || fail "auto did not train: $(cat auto.txt)"
sed 's/"saved"/"alone"/' job.json > alone.json
"$tessera" train alone.json --log alone.jsonl > alone.txt
same_losses auto alone 1e-3
sed 's/"seed": 7/"microbatches": 2/' auto.json > both.json
refused "'parallel.microbatches' is what" "$tessera" train both.json --check

# A preset without a job, on a device of a data sheet.
cat > v100.json <<'JSON'
{"name": "four", "devices": {"v100": {"memory_gib": 16}},
 "nodes": [{"device": "v100", "count": 4, "intra_node_gbit_per_s": 170, "inter_node_gbit_per_s": 10}]}
JSON
"$tessera" plan --model gpt2 --sequence 128 --global-batch-size 16 --cluster-file v100.json \
  --library-config library.json > preset.txt
grep -q "pipeline_parallel_degree\|ddp" library.json || fail "library: $(cat library.json)"

# Two hosts whose pipeline is faster when each holds every other layer: what is written deals layers in turns, and
# trains to the losses of one process. Their memory is slow, so that half a batch takes less time than a whole one.
cat > hosts.json <<'JSON'
{"name": "hosts", "devices": {"v100": {"memory_gib": 16, "memory_gb_per_s": 50}},
 "nodes": [{"device": "v100", "count": 1, "intra_node_gbit_per_s": 170, "inter_node_gbit_per_s": 100},
           {"device": "v100", "count": 1, "intra_node_gbit_per_s": 170, "inter_node_gbit_per_s": 100}]}
JSON
sed 's/"dropout": 0/"dropout": 0, "n_embd": 256, "n_layer": 8/; s/"sequence": 16/"sequence": 64/; s/"saved"/"deep"/' \
  job.json > deep.json
"$tessera" plan --job deep.json --cluster-file hosts.json --only-tp 1 --explain 1 -o turns.json > turns.txt
grep -q "^     1 .*pp 2 .* 4 stages a rank in turns" turns.txt || fail "no turns: $(cat turns.txt)"
python3 - <<'PY' || fail "turns.json: $(cat turns.json)"
import json
partition = json.load(open("turns.json"))["parallel"]["partition"]
assert [partition[f"transformer.h.{i}"] for i in range(8)] == [0, 1] * 4, partition
PY
python3 - "$("$tessera" train turns.json --check --cluster-file hosts.json)" "$(grep "^     1 " turns.txt)" <<'PY' ||
import re, sys
step, planned = re.search(r"steps of ([0-9.]+) s", sys.argv[1]).group(1), sys.argv[2].split()[1]
assert abs(float(step) - float(planned)) < 1e-3, (step, planned)
PY
  fail "--check says other seconds than the plan: $("$tessera" train turns.json --check --cluster-file hosts.json)"
"$tessera" launch -n 2 -- "$tessera" train turns.json --log turns.jsonl > turns_trained.txt
sed 's/"deep"/"deep_alone"/' deep.json > deep_alone.json
"$tessera" train deep_alone.json --log deep_alone.jsonl > deep_alone.txt
same_losses turns deep_alone 1e-5
"$tessera" plan --job deep.json --cluster-file hosts.json --only-tp 1 --most-stages-per-rank 1 > no_turns.txt
if grep -q "in turns" no_turns.txt; then fail "turns all the same: $(cat no_turns.txt)"; fi
"$tessera" simulate --job deep.json --cluster-file hosts.json --pp 2 --dp 1 --mbs 4 --active-microbatches 4 \
  --stages-per-rank 4 > simulated.txt || fail "simulate: $(cat simulated.txt)"
grep -q "4 stages a rank in turns" simulated.txt || fail "simulate: $(cat simulated.txt)"

# Bad input: what is missing, and the nearest thing that would fit.
sed 's/"memory_gib": 16/"memory_gib": 1/' v100.json > small.json
refused "GiB more than a device has" "$tessera" plan --model gpt2 --sequence 128 \
  --global-batch-size 16 --cluster-file small.json
sed 's/"intra_node_gbit_per_s": 170/"intra_node_gbit_per_s": 0/' v100.json > zero.json
refused "cannot reach each other" "$tessera" plan --model gpt2 --global-batch-size 16 \
  --cluster-file zero.json
refused "global-batch-size is missing" "$tessera" plan --model gpt2 --cluster-file v100.json
refused "exclude each other" "$tessera" plan --model gpt2 --job job.json --cluster-file v100.json
sed 's/v100/abacus/g' v100.json > unknown.json
refused "tessera probe" "$tessera" plan --model gpt2 --global-batch-size 16 \
  --cluster-file unknown.json
cp v100.json measured.json
refused "is the file of --cluster-file, which would be lost" "$tessera" plan --model gpt2 \
  --sequence 128 --global-batch-size 16 --cluster-file measured.json -o ./measured.json
cmp v100.json measured.json || fail "the cluster file has changed"
