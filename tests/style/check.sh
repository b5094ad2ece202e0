#!/usr/bin/env bash
# usage: check.sh CHECK ROOT     CHECK: length readme links paths names columns self_test
# Prints what is wrong, one line each; exit status 1 when anything is.
set -euo pipefail

readonly kMostLines=600
self=$(realpath "$0")
readonly self
failures=0
fail() {
  echo "$*"
  failures=$((failures + 1))
}

# Files of the tree without what a build or an editor puts there.
files() {
  find . -path ./.git -prune -o -path './build*' -prune -o -path ./run -prune \
    -o -path ./.cache -prune -o -type f \( "$@" \) -print | sort
}

check_length() {
  local file lines
  while read -r file; do
    lines=$(wc -l < "$file")
    [ "$lines" -le $kMostLines ] || fail "$file: $lines lines; divide it, the limit is $kMostLines"
  done < <(files -name '*.h' -o -name '*.cpp' -o -name '*.cmake' -o -name '*.sh')
}

check_readme() {
  local folder lines
  for folder in tessera/*/; do
    if [ ! -f "${folder}README.md" ]; then
      fail "${folder}README.md is missing: what, entry file, invariants, tests"
      continue
    fi
    lines=$(wc -l < "${folder}README.md")
    if [ "$lines" -lt 5 ] || [ "$lines" -gt 24 ]; then
      fail "${folder}README.md: $lines lines; 5 to 24 are allowed, 10 to 20 are wanted"
    fi
  done
}

# Lines outside fenced blocks, without code in backquotes: a lambda is no link.
without_code() {
  awk '/^ *```/ { code = !code; next } !code' "$1" | sed 's/`[^`]*`//g'
}

check_links() {
  local file target path
  while read -r file; do
    while read -r target; do
      path=${target%%#*}
      case "$target" in
        '' | \#* | http://* | https://* | mailto:*) continue ;;
      esac
      [ -e "$(dirname "$file")/$path" ] || fail "$file: link to '$target' leads nowhere"
    done < <(without_code "$file" | grep -o '\](\([^)]*\))' | sed 's/^](//; s/)$//; s/ ".*//')
  done < <(files -name '*.md')
}

# Paths of one machine mean nothing on another. (The brackets keep this file
# from finding itself.)
check_paths() {
  local hit
  while read -r hit; do
    fail "path of a machine: $hit"
  done < <(files -name '*' | tr '\n' '\0' | xargs -0 grep -nIE '(^|[^[:alnum:]_.])/(hom[e]|roo[t]|wor[k])/|/tmp/[w]/' | cut -c1-160)
}

# Files that pages name in backquotes exist. The changelog and the answers to the review name what was.
check_names() {
  local file name
  while read -r file; do
    while read -r name; do
      [ -e "$name" ] || fail "$file: there is no '$name'"
    done < <(grep -oE '`(tessera|docs|examples|cli|models|tests|bench|cmake)/[A-Za-z0-9_./-]+`' "$file" | tr -d '`' | sort -u)
  done < <(files -name '*.md' | grep -vE '^./(CHANGELOG|docs/review-answered).md$')
}

# Prose of at most 130 columns. Rows of tables and code cannot be wrapped; docs/configuration.md is written by the
# program (tessera config --markdown).
check_columns() {
  local file hit
  while read -r file; do
    while read -r hit; do
      fail "$file:$hit columns; 130 are allowed"
    done < <(awk '/^```/ { code = !code; next }
      !code && !/^    / && !/^\|/ && length > 130 { print FNR ": " length }' "$file")
  done < <(files -name '*.md' | grep -v '^./docs/configuration.md$')
}

# Each check must find what it is there to find, and nothing in a clean tree.
self_test() {
  local check
  tree=$(mktemp -d) # global: the trap outlives this function
  trap 'rm -rf "$tree"' EXIT
  mkdir -p "$tree/clean/tessera/a" "$tree/bad/tessera/a"
  seq 12 > "$tree/clean/tessera/a/README.md"
  printf '%s\n' '[here](a/README.md#top) [there](https://example.org) `[](int x)`' \
    '```' 'auto f = [](int y) {};' '```' > "$tree/clean/tessera/page.md"
  seq 601 > "$tree/bad/tessera/a/long.cpp"
  echo '[gone](nowhere.md)' > "$tree/bad/page.md"
  echo 'see `tessera/a/gone.h`' >> "$tree/bad/page.md"
  printf '%131s\n' x | tr ' ' a > "$tree/bad/wide.md"
  printf '| %131s |\n' x >> "$tree/clean/tessera/page.md"
  echo "see /hom""e/someone/file" > "$tree/bad/notes.txt"
  for check in length readme links paths names columns; do
    if ! "$self" "$check" "$tree/clean" > /dev/null; then
      fail "check '$check' fails on a clean tree"
    fi
    if "$self" "$check" "$tree/bad" > /dev/null; then
      fail "check '$check' finds nothing in a tree that breaks its rule"
    fi
  done
}

check=$1
cd "$2"
case "$check" in
  length | readme | links | paths | names | columns) "check_$check" ;;
  self_test) self_test ;;
  *) echo "unknown check '$check'" >&2; exit 2 ;;
esac
[ "$failures" -eq 0 ]
