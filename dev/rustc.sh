#!/usr/bin/env bash
# rustc.sh RUSTC ARGUMENT...: the compiler of a release (RUSTC_WRAPPER), which leaves the paths of the building machine out of what it makes.
# Not in RUSTFLAGS: cargo names each crate's file after those, and the linker orders code by the files' names, so that two directories
# would give two programs.
set -euo pipefail
tree=$(cd "$(dirname "$0")/.." && pwd)
exec "$@" --remap-path-prefix="$tree"=. --remap-path-prefix="${CARGO_HOME:-$HOME/.cargo}"=cargo
