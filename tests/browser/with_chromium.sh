#!/usr/bin/env bash
# with_chromium.sh SCRIPT BOOK [ARGUMENT ...]: run a script of this folder on a built book, with the packages that it
# needs. CHROMIUM names the browser where it is not found by itself. Exit status 3, and one line, where something is
# not there; nothing but the two packages of package-lock.json is ever installed, and only into this folder.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
script=$1 book=$2
shift 2

missing() {
  echo "reader checks left out: $1" >&2
  exit 3
}

chromium=${CHROMIUM:-}
for name in chromium chromium-browser google-chrome google-chrome-stable; do
  test -n "$chromium" || chromium=$(command -v "$name" || true)
done
test -x "$chromium" || missing "there is no Chromium here (set CHROMIUM=/path/to/it)"
command -v npm > /dev/null && command -v node > /dev/null || missing "there is no Node with npm here"
test "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 || missing "Node $(node --version) is older than 20"
test -f "$book/search.html" || missing "there is no built book in $book: make book"

if ! cmp -s "$here/package-lock.json" "$here/node_modules/.installed"; then
  npm ci --prefix "$here" --no-audit --no-fund --loglevel=error >&2 || missing "npm could not install the packages of $here/package-lock.json"
  cp "$here/package-lock.json" "$here/node_modules/.installed"
fi
exec node "$here/$script" "$book" "$chromium" "$@"
