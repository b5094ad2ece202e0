#!/usr/bin/env bash
# usage: check.sh same_losses BEFORE COMMAND...   both print the same losses
#        check.sh same_digits BEFORE COMMAND...   the same, to the last digit
#        check.sh prints LINE COMMAND...          the command prints this line
#        check.sh resumes PROGRAM MPIRUN...       2 ranks, then 4 from their checkpoint: the losses of one rank that never stops
set -euo pipefail

check=$1
first=$2
shift 2

# compare PLAIN DISTRIBUTED: lines "step 20 loss 0.873" that are equal but for the last digit.
compare() {
  paste <(echo "$1") <(echo "$2") | awk '
    $1 != "step" || $2 != $6 || ($4 - $8) ^ 2 > 0.0015 ^ 2 { bad = 1 }
    { print "plain " $4 ", distributed " $8 }
    END { exit bad || NR < 5 }'
}

if [ "$check" = resumes ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  whole=$("$@" -n 1 "$first" "$folder/whole" 1 100)
  begun=$("$@" -n 2 "$first" "$folder/parts" 2 60)
  rest=$("$@" -n 4 "$first" "$folder/parts" 2 100)
  compare "$whole" "$begun"$'\n'"$rest"
  exit
fi
output=$("$@")
echo "$output"
case "$check" in
  same_losses) compare "$($first)" "$output" ;;
  same_digits)
    losses=$(grep '^step' <<< "$output")
    [ "$losses" = "$($first | grep '^step')" ] || {
      echo "the losses of '$first' are others" >&2
      exit 1
    }
    ;;
  prints)
    grep -qF -- "$first" <<< "$output" || {
      echo "not printed: $first" >&2
      exit 1
    }
    ;;
  *) echo "unknown check '$check'" >&2; exit 2 ;;
esac
