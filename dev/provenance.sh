#!/usr/bin/env bash
# provenance.sh BINARY FILE...: how they were made, as an in-toto statement with a SLSA v1 predicate, to standard output: their digests, the
# commit, the lock file, compiler and flags. The same commit gives the same bytes: no time of day, no name of a machine. It is not signed;
# who publishes signs it with a key of their own, and says who builds (BUILDER_ID).
set -euo pipefail
(( $# )) || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
# By the place of whoever calls, and before anything is said of them.
files=()
for file; do
  [ -f "$file" ] && [ -r "$file" ] || { echo "provenance: $file: there is no such file, or it cannot be read" >&2; exit 1; }
  files+=("$(realpath -s "$file")")
done
cd "$(dirname "$0")/.."
version=$(dev/version.sh)
commit=$(git rev-parse HEAD 2>/dev/null || true)
# Outside a repository git says nothing, too.
if changes=$(git status --porcelain --untracked-files=no 2>/dev/null) && [ -z "$changes" ]; then clean=true; else clean=false; fi
subjects=$(for file in "${files[@]}"; do printf '%s\t%s\n' "$(sha256sum <"$file" | cut -c-64)" "${file##*/}"; done |
  jq -Rn '[inputs | split("\t") | {name: .[1], digest: {sha256: .[0]}}]')
jq -n --argjson subject "$subjects" --arg version "$version" --arg commit "$commit" --argjson clean "$clean" \
  --arg lock "$(sha256sum <Cargo.lock | cut -c-64)" --arg target "$(uname -m)-unknown-linux-gnu" --arg flags "${RELEASE_FLAGS:-}" \
  --arg rustc "$(rustc --version | cut -d' ' -f2)" --arg builder "${BUILDER_ID:-urn:harvester-cloud-provider:unsigned-local-build}" '
  { _type: "https://in-toto.io/Statement/v1", subject: $subject, predicateType: "https://slsa.dev/provenance/v1",
    predicate: {
      buildDefinition: {
        buildType: "urn:harvester-cloud-provider:make-image:v1",
        externalParameters: { command: "make image", target: $target, version: $version, treeIsTheCommit: $clean },
        internalParameters: { rustflags: $flags },
        resolvedDependencies: [
          { name: "source", uri: "pkg:generic/harvester-cloud-provider@\($version)", digest: { gitCommit: $commit } },
          { name: "Cargo.lock", digest: { sha256: $lock } },
          { name: "rustc", uri: "pkg:generic/rustc@\($rustc)" } ] },
      runDetails: { builder: { id: $builder } } } }'
