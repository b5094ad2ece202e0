#!/usr/bin/env bash
# usage: planted.sh PROGRAM FAULT      the driver finds the fault in PROGRAM
set -uo pipefail
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
out=$("$program" --seconds 20 --iterations 100000 2>&1)
status=$?
echo "exit status $status: $out"
case "$2" in
  crash)
    # Killed by SIGABRT; the input that is kept does it again.
    [ "$status" -eq 134 ] && grep -q 'broken promise: planted' <<< "$out" || exit 1
    "$program" fuzz-failure-*
    [ $? -eq 134 ]
    ;;
  throw)
    [ "$status" -eq 1 ] && grep -q 'another type.*planted' <<< "$out" || exit 1
    "$program" fuzz-failure-*
    [ $? -eq 1 ]
    ;;
  one_sided) [ "$status" -eq 1 ] && grep -q 'one side only' <<< "$out" ;;
esac
