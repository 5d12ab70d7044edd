#!/usr/bin/env bash
# book.sh: makes the site of the documents with mdBook, docs/ -> OUT (target/book), and checks that no link in it leads nowhere.
# mdBook comes from the crates registry at the first use, and stays in the cache outside the tree, with its version in its name.
set -euo pipefail
cd "$(dirname "$0")/.."
MDBOOK=${MDBOOK:-0.5.4}
OUT=$(realpath -m "${OUT:-${CARGO_TARGET_DIR:-target}/book}")
CACHE=${HCP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/harvester-cloud-provider}
program=$CACHE/mdbook-$MDBOOK-$(uname -m)/bin/mdbook
if [ ! -x "$program" ]; then
  echo "mdBook $MDBOOK: building from the crates registry (takes some minutes)" >&2
  env -u RUSTFLAGS -u RUSTC_WRAPPER CARGO_TARGET_DIR="$CACHE/mdbook-build" \
    cargo install --quiet --locked --no-default-features --features search --version "$MDBOOK" --root "${program%/bin/mdbook}" mdbook
  rm -rf "$CACHE/mdbook-build"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r docs/. "$work"
# What lies outside docs/ is no part of the site: its name stays, the link goes.
sed -i -E 's/\[([^]]*)\]\(\.\.\/[^)]*\)/\1/g' "$work"/*.md
"$program" build "$work" --dest-dir "$OUT" >&2
dev/book-links.py "$OUT"
echo "$OUT/index.html"
