#!/usr/bin/env bash
# usage: libfuzzer.sh SOURCE BUILD_FOLDER RUNS [CMAKE_OPTION...]
# Builds the targets with libFuzzer and the sanitizers of the preset fuzz and gives
# each RUNS inputs, beginning with the target's own seeds.
# Exit status 77: this machine has no clang++ that can do it.
set -uo pipefail
source=$1
build=$2
runs=$3
shift 3

trial=$(mktemp -d)
trap 'rm -rf "$trial"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' \
  > "$trial/empty.cpp"
if ! clang++ -fsanitize=fuzzer,address,undefined "$trial/empty.cpp" -o "$trial/empty"; then
  echo "libfuzzer: no clang++ with libFuzzer (Debian packages clang and libclang-rt-dev); skipped" >&2
  exit 77
fi

# The values of the preset, in a folder of this build.
cmake -S "$source" --preset fuzz -B "$build" "$@" || exit 1
cmake --build "$build" --target libfuzzer_targets || exit 1

# run NAME RUNS: its output is kept in $log
run() {
  local program=$build/tests/fuzz/$1 work=$trial/$1
  log=$work/log
  mkdir -p "$work/corpus" "$work/seeds"
  "$program" --write-seeds "$work/seeds" > "$log" 2>&1 || { cat "$log"; return 1; }
  # New inputs go to the first folder.
  "$program" -runs="$2" -seed=1 -max_len=4096 -timeout=20 -artifact_prefix="$build/" \
    "$work/corpus" "$work/seeds" > "$log" 2>&1
}

failed=0
while read -r name; do
  begin=$SECONDS
  if ! run "$name" "$runs"; then
    echo "$name: failed; its input is kept in $build"
    tail -60 "$log"
    failed=1
    continue
  fi
  seeds=$(find "$trial/$name/seeds" -type f | wc -l)
  read -r accepted _ refused _ < <(grep -E '^[0-9]+ accepted, ' "$log" | tail -1)
  echo "$name: $seeds seeds, $accepted accepted, $refused refused," \
    "$(grep -oE 'cov: [0-9]+' "$log" | tail -1), $((SECONDS - begin)) s"
  # Otherwise one side of the code was not reached, and this shows nothing. (That mutations are
  # accepted too is what the tests with the project's own driver ask.)
  if [ "$accepted" -lt "$seeds" ] || [ "$refused" -eq 0 ]; then
    echo "$name: the inputs reach one side only"
    failed=1
  fi
done < "$build/tests/fuzz/libfuzzer_targets.txt"

# libFuzzer must find what is there to be found.
if run fuzz_planted_crash 10000000 || ! grep -q 'broken promise: planted' "$log"; then
  echo "fuzz_planted_crash: the planted fault was not found"
  tail -20 "$log"
  failed=1
fi
exit "$failed"
