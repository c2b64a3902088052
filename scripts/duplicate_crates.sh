#!/usr/bin/env bash
# Fails when the program contains a crate in several versions that `deny.toml` does not list, or when the list names one
# that is not there any more.
set -eu
cd "$(dirname "$0")/.."
several=$(cargo tree --locked --workspace --duplicates --depth 0 --edges normal,build --prefix none --format '{p}' |
  awk 'NF { print $1, $2 }' | sort -u | cut -d ' ' -f 1 | uniq -d)
listed=$(sed -nE 's/^ *\{ crate = "([^"@]+)@.*/\1/p' deny.toml | sort -u)
findings=$(diff <(echo "$several") <(echo "$listed") |
  sed -nE 's/^< (.*)/`\1` comes in several versions: use the version that others bring, or list it in deny.toml/p
           s/^> (.*)/`\1` is listed in deny.toml, but comes in one version: remove it there/p')
[ -z "$findings" ] || { echo "$findings" >&2; exit 1; }
