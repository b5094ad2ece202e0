#!/usr/bin/env bash
# usage: run.sh SOURCE BUILD_FOLDER SANITIZERS [CMAKE_OPTION...]
# Builds the small set of cmake/tessera_sanitize.cmake under SANITIZERS (as g++
# names them) and runs it. The folder stays, so a second run compiles what changed.
set -euo pipefail
source=$1
build=$2
sanitizers=$3
shift 3
cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DTESSERA_SANITIZE="$sanitizers" -DTESSERA_BUILD_BENCHMARKS=OFF \
  -DTESSERA_BUILD_EXAMPLES=OFF -DTESSERA_BUILD_TOOLS=OFF "$@"
cmake --build "$build" --target sanitized_small_tests
ctest --test-dir "$build" --output-on-failure --no-tests=error -L '^sanitize_small$' -j "$(nproc)"
