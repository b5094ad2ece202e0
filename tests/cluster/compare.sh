# Sourced after emulate.sh: strategies for a GPT, planned and trained on the emulated cluster.
# Before: tessera=PROGRAM, repository=FOLDER, and launch and on_head of emulate.sh.

# Probes the cluster and writes data and job.json: a GPT of so many layers of this width without
# dropout, and batches of so many samples.
prepare_job() { # LAYERS WIDTH BATCH
  launch "$tessera" probe --quick -o cluster.json
  "$tessera" data prepare --output data --vocab-size 400 \
    --text "$repository"/README.md "$repository"/docs/*.md > /dev/null
  cat > job.json << JSON
{"parallel": {"timeout_seconds": 100},
 "model": {"name": "gpt-mini", "options": {"dropout": 0, "n_layer": $1, "n_embd": $2, "n_head": 4}},
 "data": {"directory": "data", "sequence": 32, "batch": $3},
 "steps": 100, "log_every": 1}
JSON
}

# Says in cluster.json that a host lends so many GiB to each of its ranks; 0: what was measured.
lend_memory() { # GIB..., one a host
  python3 - "$@" << 'PY'
import json, sys
cluster = json.load(open("cluster.json"))
for node, gib in zip(cluster["nodes"], map(float, sys.argv[1:]), strict=True):
    if gib > 0:
        kind = f'{node["device"]} of {node["host"]}'
        cluster["devices"][kind] = {**cluster["devices"][node["device"]], "memory_gib": gib}
        node["device"] = kind
used = {node["device"] for node in cluster["nodes"]}
cluster["devices"] = {kind: device for kind, device in cluster["devices"].items() if kind in used}
json.dump(cluster, open("cluster.json", "w"))
PY
}

# Writes NAME.json, the job under the fastest of the K strategies that are predicted to be best, as
# Li et al. 2022 end their search (section 4.5).
plan_by_trials() { # NAME K OPTION...
  local name=$1 trials=$2
  shift 2
  on_head "$tessera" plan --job job.json --cluster-file cluster.json --keep-node-order --fast-mode --keep 5 \
    --trials "$trials" --trial-steps 5 --hostfile "$work/hosts" -o "$name.json" "$@"
}

# Trains NAME.json of each name twice, in turns, so that a busy minute meets all of them. Logs are
# NAME.1.jsonl and NAME.2.jsonl.
train_in_turns() { # STEPS NAME...
  local steps=$1 round name
  shift
  for round in 1 2; do
    for name in "$@"; do
      launch "$tessera" train "$name.json" --steps "$steps" --log "$name.$round.jsonl" > "$name.txt" 2>&1 ||
        fail "$name: $(tail -n 5 "$name.txt")"
    done
  done
}

# Asserts that both train the same numbers, and that the step of OTHER takes at least RATIO times
# that of MINE; prints both. A step is the middle one of the better round, without the first seven:
# in fast mode six go before those that are repeated.
compare_steps() { # WHAT MINE OTHER RATIO
  python3 - "$@" << 'PY'
import json, statistics, sys
what, mine, other, least = sys.argv[1:]
def rows(pick, round):
    return [r for r in map(json.loads, open(f"{pick}.{round}.jsonl")) if "step_seconds" in r]
def step(pick):
    return min(statistics.median([r["step_seconds"] for r in rows(pick, k)][-max(1, len(rows(pick, 1)) - 7):]) for k in (1, 2))
def losses(pick, round):
    return [r["loss"] for r in rows(pick, round)]
for round in (1, 2):
    for a, b in zip(losses(mine, round), losses(other, 1), strict=True):
        assert abs(a - b) < 1e-3 * b, (round, losses(mine, round), losses(other, 1))
fast, slow = step(mine), step(other)
print(f"{what}: {mine} {fast:.4f} s a step, {other} {slow:.4f} s: {slow / fast:.2f} x", flush=True)
assert slow >= float(least) * fast, f"less than {least} x"
PY
}
