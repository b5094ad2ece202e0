# Sourced by the tests of how runs begin, fail and end; `tessera` and `repository` are set.
work=$(mktemp -d)
started= # a process of the test that may still run
trap '[ -z "$started" ] || kill -KILL "$started" 2> /dev/null; rm -rf "$work"' EXIT
cd "$work"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
status_of() { # the command's exit status; its output goes to the file of the first argument
  local out=$1
  shift
  local status=0
  "$@" > "$out" 2>&1 || status=$?
  echo "$status"
}
prepare() { # folder, more arguments
  "$tessera" data prepare --vocab-size 400 --text "$repository"/docs/*.md --output "$@" > prepare.txt
}
job() { # name, learning rate, steps, parallel keys, more sections
  cat > "$1.json" <<JSON
{
  "parallel": {$4"timeout_seconds": 60},
  "model": {"name": "gpt-tiny", "options": {"dropout": 0.1, "n_layer": 2, "n_embd": 32, "n_head": 2}},
  "data": {"directory": "data", "sequence": 16, "batch": 8},
  "optimizer": {"learning_rate": $2, "warmup_steps": 0},
  "checkpoint": {"directory": "$1", "every": 1, "keep": 2},
  "steps": $3, "log_every": 1$5
}
JSON
}
two_stages='"pipeline_parallel_degree": 2, "microbatches": 2, '
ranks=2
export OMP_NUM_THREADS=1 # threads of a busy machine wait for each other
train() { "$tessera" launch -n "$ranks" -- "$tessera" train "$@"; }
wait_for() { # pattern, file
  for _ in $(seq 600); do
    if grep -q "$1" "$2"; then return; fi
    sleep 0.1
  done
  fail "no '$1' within a minute: $(cat "$2")"
}
