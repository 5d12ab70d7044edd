#!/usr/bin/env bash
# sbom.sh: writes what the shipped binary is made of, as CycloneDX 1.5 JSON, to standard output. The same Cargo.lock gives the same
# bytes: no serial number, no time of day.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(uname -m)-unknown-linux-gnu
version=$(dev/version.sh)

# Name and version to checksum, from the lock file.
checksums=$(awk -F'"' '/^name = /{n=$2} /^version = /{v=$2} /^checksum = /{print n "@" v "\t" $2}' Cargo.lock | jq -Rn '[inputs | split("\t") | {(.[0]): .[1]}] | add')
cargo tree --locked --offline -p harvester-cloud-provider --target "$target" -e normal --prefix none --no-dedupe -f '{p}|{l}|{r}' | LC_ALL=C sort -u |
  jq -Rn --argjson checksums "$checksums" --arg version "$version" '
    def components: [inputs | split("|") as [$package, $license, $repository] |
      ($package | split(" ")) as [$name, $v] | ($v | ltrimstr("v")) as $v | select($name != "harvester-cloud-provider") |
      { type: "library", "bom-ref": "\($name)@\($v)", name: $name, version: $v }
      + (if $license != "" then { licenses: [{ expression: ($license | gsub("/"; " OR ")) }] } else {} end)
      + (if $repository != "" then { externalReferences: [{ type: "vcs", url: $repository }] } else {} end)
      # Our own crates are not in the registry.
      + ($checksums["\($name)@\($v)"] | if . then { purl: "pkg:cargo/\($name)@\($v)", hashes: [{ alg: "SHA-256", content: . }] } else {} end)]
      | unique_by(."bom-ref");
    { bomFormat: "CycloneDX", specVersion: "1.5", version: 1,
      metadata: { component: { type: "application", "bom-ref": "harvester-cloud-provider", name: "harvester-cloud-provider",
        version: $version, licenses: [{ expression: "Apache-2.0" }] } },
      components: components }'
