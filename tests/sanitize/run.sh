#!/usr/bin/env bash
# usage: run.sh SOURCE BUILD_FOLDER SANITIZERS COMPILER [CMAKE_OPTION...]
# Builds the small set of cmake/tessera_sanitize.cmake under SANITIZERS (as g++
# names them) and runs it. The folder stays, so a second run compiles what changed.
# Exit status 77: COMPILER has no runtime of these sanitizers on this machine.
set -euo pipefail
source=$1
build=$2
sanitizers=$3
compiler=$4
shift 4
trial=$(mktemp -d)
trap 'rm -rf "$trial"' EXIT
echo 'int main() {}' > "$trial/empty.cpp"
if ! "$compiler" "-fsanitize=$sanitizers" "$trial/empty.cpp" -o "$trial/empty"; then
  echo "sanitize: $compiler has no runtime for $sanitizers (clang: libclang-rt-dev); skipped" >&2
  exit 77
fi
cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DTESSERA_SANITIZE="$sanitizers" -DTESSERA_BUILD_BENCHMARKS=OFF \
  -DTESSERA_BUILD_EXAMPLES=OFF -DTESSERA_BUILD_TOOLS=OFF "-DCMAKE_CXX_COMPILER=$compiler" "$@"
cmake --build "$build" --target sanitized_small_tests
ctest --test-dir "$build" --output-on-failure --no-tests=error -L '^sanitize_small$' -j "$(nproc)"
