#!/usr/bin/env bash
# usage: check.sh same_losses BEFORE COMMAND...   both print the same losses
#        check.sh prints LINE COMMAND...          the command prints this line
set -euo pipefail

check=$1
first=$2
shift 2
output=$("$@")
echo "$output"
case "$check" in
  same_losses)
    # "step 20 loss 0.873": equal but for the last digit printed.
    paste <($first) <(echo "$output") | awk '
      $1 != "step" || $2 != $6 || ($4 - $8) ^ 2 > 0.0015 ^ 2 { bad = 1 }
      { print "plain " $4 ", distributed " $8 }
      END { exit bad || NR < 5 }'
    ;;
  prints)
    grep -qF -- "$first" <<< "$output" || {
      echo "not printed: $first" >&2
      exit 1
    }
    ;;
  *) echo "unknown check '$check'" >&2; exit 2 ;;
esac
