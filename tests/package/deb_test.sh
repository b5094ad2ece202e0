#!/usr/bin/env bash
# usage: deb_test.sh CPACK BUILD SOURCE     Makes the Debian package of a build and runs what is in it.
set -euo pipefail
cpack=$1 build=$2 source=$3
fail() { echo "deb_test: $*" >&2; exit 1; }
for tool in dpkg-deb dpkg-shlibdeps file readelf; do
  command -v "$tool" > /dev/null || { echo "SKIPPED: no $tool; packages are made on Debian"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

"$cpack" -G DEB --config "$build/CPackConfig.cmake" -B "$work/pack" \
  -D CPACK_COMPONENTS_ALL=program -D CPACK_DEBIAN_COMPRESSION_TYPE=gzip > cpack.log 2>&1 ||
  fail "cpack failed: $(tail -n 20 cpack.log)"
package=$(find pack -maxdepth 1 -name 'tessera_*.deb')
[ -f "$package" ] || fail "cpack made '$package': $(cat cpack.log)"

# The control file.
[ "$(dpkg-deb -f "$package" Package)" = tessera ] || fail "Package: $(dpkg-deb -f "$package" Package)"
version=$(dpkg-deb -f "$package" Version)
depends=$(dpkg-deb -f "$package" Depends)
for needed in libtorch1.13 libopenmpi3 openmpi-bin libsentencepiece0 libc6 'libstdc++6'; do
  [[ ", $depends" == *", $needed"* ]] || fail "Depends lacks $needed: $depends"
done

# What is in it, and where.
dpkg-deb -x "$package" root
for file in bin/tessera bin/tessera-commands bin/tessera-tokenizer share/man/man1/tessera.1 share/man/man1/tessera-train.1 \
  share/bash-completion/completions/tessera share/zsh/vendor-completions/_tessera \
  share/fish/vendor_completions.d/tessera.fish share/doc/tessera/copyright; do
  [ -f "root/usr/$file" ] || fail "no usr/$file in the package: $(dpkg-deb -c "$package")"
done
[ "$(ls root)" = usr ] || fail "files outside usr: $(ls root)"
[ "$(ls root/usr | xargs)" = "bin share" ] || fail "in usr: $(ls root/usr)"

# Libraries are searched where Debian has them, not where this was built.
for program in tessera tessera-commands tessera-tokenizer; do
  paths=$(readelf -d "root/usr/bin/$program" | sed -nE 's/.*\((RPATH|RUNPATH)\).*\[(.*)\]/\2/p')
  for path in ${paths//:/ }; do
    [[ "$path" == /usr/lib/* ]] || fail "$program looks for libraries in $path"
  done
  libraries=$(ldd "root/usr/bin/$program")
  if grep -qE "not found|$build|$source" <<< "$libraries"; then fail "$program: $libraries"; fi
done

# It runs from there, with nothing of this shell's environment.
alone() { env -i PATH=/usr/bin:/bin HOME="$work" OMP_NUM_THREADS=1 "$work/root/usr/bin/tessera" "$@"; }
[[ "$(alone --version)" == "tessera $version, libtorch "* ]] || fail "--version: $(alone --version)"
grep -q '^  train ' <<< "$(alone help)" || fail "help: $(alone help)"
cmp <(alone completion bash) root/usr/share/bash-completion/completions/tessera || fail "completion"
grep -qF "tessera $version" root/usr/share/man/man1/tessera.1 || fail "the man page is of another version"
# The tokenizer is the package's: without it the program would say so, or take that of the build.
mv root/usr/bin/tessera-tokenizer kept
printf '#!/bin/sh\nexec "%s/kept" "$@"\n' "$work" > root/usr/bin/tessera-tokenizer
sed -i "2i touch '$work/asked'" root/usr/bin/tessera-tokenizer
chmod +x root/usr/bin/tessera-tokenizer
alone data prepare --vocab-size 400 --text "$source"/docs/*.md --output data > /dev/null
[ -f asked ] && [ -f data/train.tokens ] || fail "data prepare did not use the package's tokenizer"
