#!/usr/bin/env bash
# usage: shells_test.sh PROGRAM     Man pages and completions, as they are installed.
# What groff, zsh and fish themselves say of them is asked where they are there.
set -euo pipefail
program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "shells_test: $*" >&2; exit 1; }

"$program" help --files "$work/share"
cd "$work/share"
commands=$("$program" help | sed -n '/^Subcommands:/,$p' | sed -n 's/^  \([a-z]\+\) .*/\1/p')
[ "$(wc -w <<< "$commands")" -ge 15 ] || fail "commands: $commands"

# One page for the program and for each command, and each option stands in it.
pages=$(cd man/man1 && ls)
expected=$(printf 'tessera-%s.1\n' $commands; echo tessera.1)
[ "$pages" = "$(sort <<< "$expected")" ] || fail "man pages: $pages"
plain() { # the text of a page as a reader sees it
  if command -v groff > /dev/null; then
    # -c: no colours; then neither bold nor underlined by overstriking
    groff -man -Tascii -P-c -P-b -P-u "$1"
  else
    sed 's/\\f[BIR]//g; s/\\-/-/g; s/\\e/\\/g; s/\\&//g' "$1"
  fi
}
for command in $commands; do
  page=man/man1/tessera-$command.1
  text=$(plain "$page")
  for option in $("$program" "$command" --help | grep -oE '^  [^ ].*' | grep -oE -- '--[a-z][a-z-]+' | sort -u); do
    grep -qF -- "$option" <<< "$text" || fail "$page has no $option"
  done
done
grep -qE -- '-o, --output' <<< "$(plain man/man1/tessera-report.1)" || fail "report.1 has no -o, --output"
grep -qF 'tessera data prepare [options]' <<< "$(plain man/man1/tessera-data.1)" || fail "data.1 has no prepare"
for page in man/man1/*.1; do
  [ "$(head -c 4 "$page")" = ".TH " ] || fail "$page does not begin with .TH"
  for section in NAME SYNOPSIS OPTIONS 'SEE ALSO'; do
    grep -qx "\.SH $section" "$page" || fail "$page has no section $section"
  done
  # Nothing that a user wrote is a request of the formatter.
  if grep -nE "^[.']" "$page" | grep -vE ':\.(TH|SH|SS|TP|PP|BR|nf|fi|ad l|nh)( |$)'; then
    fail "$page has requests of its own"
  fi
  if command -v groff > /dev/null; then
    for device in utf8 ascii; do
      warnings=$(groff -man -T$device -ww -z "$page" 2>&1) || fail "groff failed on $page: $warnings"
      [ -z "$warnings" ] || fail "groff warns of $page: $warnings"
    done
  fi
done

# The installed scripts are those that the program prints.
declare -A file=([bash]=bash-completion/completions/tessera [zsh]=zsh/site-functions/_tessera
  [fish]=fish/vendor_completions.d/tessera.fish)
for shell in bash zsh fish; do
  cmp <("$program" completion "$shell") "${file[$shell]}" || fail "completion of $shell"
done
cmp zsh/site-functions/_tessera zsh/vendor-completions/_tessera || fail "zsh's two files differ"
bash -n "${file[bash]}"

grep -qF "'(-o --output)--output=[HTML file to write]:TEXT:_files'" "${file[zsh]}" || fail "zsh: --output"
grep -qF "':shell:(bash fish zsh)'" "${file[zsh]}" || fail "zsh: the shells"
if command -v zsh > /dev/null; then
  zsh -n "${file[zsh]}" || fail "zsh does not read its script"
  # What _arguments is given for `tessera data `, `tessera data prepare `.
  specs() {
    zsh -f -c 'compdef() { true }; _describe() { print -rl -- $commands };
      _arguments() { print -rl -- "$@"; state=$next; line=($words) }
      source "$0"; next=$1; shift; words=("$@"); _tessera_data' "$PWD/${file[zsh]}" "$@"
  }
  grep -q '^prepare:' <<< "$(specs command)" || fail "zsh: data has no prepare"
  grep -qF -- '--vocab-size=[' <<< "$(specs argument prepare)" || fail "zsh: prepare has no --vocab-size"
fi

grep -qF -- "-s o -l output -r -d 'HTML file to write'" "${file[fish]}" || fail "fish: --output"
if command -v fish > /dev/null; then
  fish -n "${file[fish]}" || fail "fish does not read its script"
  complete_with_fish() { fish --no-config -c "source ${file[fish]}; complete -C '$1'" | cut -f 1; }
  [ "$(complete_with_fish 'tessera tra')" = train ] || fail "fish: tra"
  [ "$(complete_with_fish 'tessera data prep')" = prepare ] || fail "fish: data prep"
  [ "$(complete_with_fish 'tessera train --resu')" = --resume ] || fail "fish: train --resu"
  grep -qx -- --output <<< "$(complete_with_fish 'tessera data prepare --')" || fail "fish: data prepare --"
  [ "$(complete_with_fish 'tessera completion z')" = zsh ] || fail "fish: completion z"
fi
