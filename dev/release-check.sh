#!/usr/bin/env bash
# release-check.sh: builds binary, image and chart of the last commit twice, in directories of other names, and compares every byte. Takes
# two release builds. What is not committed does not count.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset CARGO_TARGET_DIR
# The commit is part of the program: one that is made meanwhile must not be what differs.
commit=$(git rev-parse HEAD)
for place in one another/that-is-longer; do
  git clone -q --no-hardlinks . "$work/$place"
  git -C "$work/$place" -c advice.detachedHead=false checkout -q "$commit"
  # The second one on another day, as other users would.
  ( cd "$work/$place" && [ "$place" = one ] || find . -path ./.git -prune -o -type f -exec touch -d '2001-02-03' {} +
    cd "$work/$place" && ${RELEASE_CHECK_NICE:-} make --no-print-directory image chart ) >&2
  ( cd "$work/$place/target" && sha256sum "$(uname -m)"-unknown-linux-gnu/release/harvester-cloud-provider \
      harvester-cloud-provider.{tar,cdx.json,intoto.json,sha256} charts/*/*.tgz charts/*/index.yaml ) >"$work/${place%%/*}.sums"
done
cat "$work/one.sums"
diff "$work/one.sums" "$work/another.sums" || { echo "release-check: these differ" >&2; exit 1; }
echo "release-check: two builds in two directories are the same, byte by byte"
