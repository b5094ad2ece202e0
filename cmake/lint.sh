#!/usr/bin/env bash
# usage: cmake/lint.sh format            every source file is as .clang-format says
#        cmake/lint.sh tidy BUILD_FOLDER [FILE...]
#                                        clang-tidy over the half without libtorch
#                                        (or over the files named), warnings are errors
# Exit status 77: the tool is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."

need() {
  if ! command -v "$1" > /dev/null; then
    echo "lint: $1 is not installed (Debian package $1); nothing was checked" >&2
    exit 77
  fi
}

sources() {
  find tessera models cli examples bench tests -name '*.h' -o -name '*.cpp' 2> /dev/null | sort
}

format() {
  need clang-format
  mapfile -t files < <(sources)
  clang-format --dry-run -Werror "${files[@]}"
  echo "lint: ${#files[@]} files are formatted"
}

# Files of folders without a T in cmake/layers.txt: libtorch's headers cost
# clang-tidy over 30 s a file, and version 14 needs help to parse them.
torch_free() {
  sed -n 's/^\([a-z0-9_/]*\):.*/\1/p' cmake/layers.txt | while read -r folder; do
    if [ -d "tessera/$folder" ]; then
      find "tessera/$folder" -name '*.cpp'
    fi
  done | sort
}

tidy() {
  need clang-tidy
  local build=$1
  shift
  if [ ! -f "$build/compile_commands.json" ]; then
    echo "lint: $build/compile_commands.json is missing: configure with cmake -B $build first" >&2
    exit 2
  fi
  local files=("$@")
  if [ "${#files[@]}" -eq 0 ]; then
    mapfile -t files < <(torch_free)
  fi
  # clang does not know g++'s flags for precompiled headers, and reads none.
  printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" \
    clang-tidy --quiet -p "$build" --extra-arg=-Wno-unknown-warning-option \
    --extra-arg=-Wno-ignored-optimization-argument --extra-arg=-Wno-unused-command-line-argument
  echo "lint: ${#files[@]} files pass clang-tidy"
}

case "${1:-}" in
  format) format ;;
  tidy)
    if [ $# -lt 2 ]; then
      sed -n '2,6p' "$0" | sed 's/^# //' >&2
      exit 2
    fi
    shift
    tidy "$@"
    ;;
  *) sed -n '2,6p' "$0" | sed 's/^# //' >&2; exit 2 ;;
esac
