#!/usr/bin/env bash
# usage: help_test.sh PROGRAM     What the program says about itself: version, help, completion.
set -euo pipefail
program=$1

fail() { echo "help_test: $*" >&2; exit 1; }

version=$("$program" --version)
[[ "$version" =~ ^tessera\ [0-9]+\.[0-9]+\.[0-9]+,\ libtorch\ [0-9.]+[^,]*,\ [^,]+$ ]] ||
  fail "--version said '$version'"

[ "$("$program" help train)" = "$("$program" train --help)" ] || fail "help train is not train --help"
[ "$("$program" help)" = "$("$program" --help)" ] || fail "help is not --help"
for words in "checkpoint show" "data prepare"; do
  # shellcheck disable=SC2086
  [ "$("$program" help $words)" = "$("$program" $words --help)" ] || fail "help $words is not $words --help"
done
if message=$("$program" help data prepar 2>&1); then fail "help data prepar succeeded"; fi
[[ "$message" == *"no command 'data prepar'"*"did you mean 'prepare'"* ]] || fail "help data prepar said '$message'"
if message=$("$program" help train now 2>&1); then fail "help train now succeeded"; fi
[[ "$message" == *"'train' has no commands below it"* ]] || fail "help train now said '$message'"
if message=$("$program" trian 2>&1); then fail "trian succeeded"; fi
[[ "$message" == *"did you mean train?"* && "$message" != *"subcommand is required"* ]] || fail "trian said '$message'"
if message=$("$program" checkpoint frobnicate x 2>&1); then fail "checkpoint frobnicate succeeded"; fi
[[ "$message" == "'frobnicate' is no command; there are show, merge, convert" ]] ||
  fail "checkpoint frobnicate said '$message'"
if message=$("$program" help trian 2>&1); then fail "help trian succeeded"; fi
[[ "$message" == *"no command 'trian'"*"did you mean 'train'"* ]] || fail "help trian said '$message'"

if message=$("$program" -q -v help 2>&1); then fail "-q -v was accepted"; fi
[[ "$message" == *"excludes"* ]] || fail "-q -v said '$message'"
[ "$("$program" -q help)" = "$("$program" help)" ] || fail "-q help is not help"

# A path that the system refuses is named, and no surprise.
long=/tmp/$(printf 'a%.0s' {1..300})
if message=$("$program" checkpoint merge "$long" merged 2>&1); then fail "a name of 300 letters was taken"; fi
[[ "$message" == *"'/tmp/aaa"*"File name too long"* && "$message" != *unexpected* ]] ||
  fail "a name of 300 letters: '$message'"

# Completes the words given; the last one is what the user has typed so far.
complete_words() {
  COMP_WORDS=("$@")
  COMP_CWORD=$(($# - 1))
  COMPREPLY=()
  _tessera
  echo "${COMPREPLY[*]}"
}
# shellcheck disable=SC1090
source <("$program" completion bash)
[ "$(complete_words tessera tra)" = train ] || fail "tra became '$(complete_words tessera tra)'"
[ "$(complete_words tessera train job.json --resu)" = --resume ] || fail "train --resu was not completed"
[ "$(complete_words tessera data prep)" = prepare ] || fail "data prep was not completed"
[[ " $(complete_words tessera data prepare --) " == *" --output "* ]] || fail "data prepare has no --output"
[[ " $(complete_words tessera train --) " != *" --output "* ]] || fail "train has the options of another command"
