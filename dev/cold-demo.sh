#!/usr/bin/env bash
# cold-demo.sh: takes the time of `make demo` where nothing is built yet: the last commit in a directory of its own, with empty caches of
# cargo, Go and the programs of Kubernetes. Debian packages that are installed stay. As root, with a network. The last line is JSON.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d "${TMPDIR:-/var/tmp}/hcp-cold.XXXXXX")
# Go takes the right to write from what it has downloaded.
trap 'chmod -R u+w "$work"; rm -rf --one-file-system "$work"' EXIT
git clone -q --no-hardlinks . "$work/tree"
mkdir "$work/cargo"
# Where crates come from is no part of the cache.
cp "${CARGO_HOME:-$HOME/.cargo}"/config* "$work/cargo/" 2>/dev/null || true
unset CARGO_TARGET_DIR
export CARGO_HOME=$work/cargo GOCACHE=$work/go-build GOMODCACHE=$work/go-modules HCP_CACHE=$work/programs
cd "$work/tree"
make --no-print-directory demo | tee "$work/log"
built=$(sed -n 's/^ *\([0-9]*\) s  .*: done after .*/\1/p' "$work/log" | sort -n | tail -n 1)
kilobytes=$(du -sk "$work" | cut -f1)
echo "{\"seconds\": $SECONDS, \"building_seconds\": $built, \"disk_gb\": $((kilobytes / 1000 / 1000)).$((kilobytes / 1000 % 1000 / 100))}"
