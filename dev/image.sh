#!/usr/bin/env bash
# image.sh BINARY: puts a static binary into the image, writes that as OUT (target/harvester-cloud-provider.tar, a docker-archive),
# and refuses what a node should not have to pull: more than 12 MB compressed, or a binary that needs libraries.
set -euo pipefail
binary=$(realpath "${1:?usage: dev/image.sh BINARY}")
cd "$(dirname "$0")/.."
TARGET=${CARGO_TARGET_DIR:-target}
OUT=${OUT:-$TARGET/harvester-cloud-provider.tar}
LIMIT=${IMAGE_LIMIT:-12000000}
# Times in the image are the commit's, so that the same commit gives the same bytes.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || true)}
: "${SOURCE_DATE_EPOCH:=0}"
die() { printf 'image: %s\n' "$*" >&2; exit 1; }
headers=$(readelf -lW "$binary" 2>/dev/null) && [[ $headers == *LOAD* ]] || die "$binary is no program; build it with: make release"
[[ $headers != *INTERP* ]] || die "$binary is not static; build it with: make release"

version=$(dev/version.sh)
revision=${REVISION:-$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}
# Each commit has a tag of its own: nodes do not pull a tag again that they have.
IMAGE=${IMAGE:-localhost/harvester-cloud-provider:v$version-$revision}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
install -D -m 0755 "$binary" "$work/context/root/usr/bin/harvester-cloud-provider"
mkdir -p "$work/context/root/usr/share/sbom"
dev/sbom.sh >"$work/context/root/usr/share/sbom/harvester-cloud-provider.cdx.json"
buildah=(buildah --storage-driver vfs --root "$work/store" --runroot "$work/run")
"${buildah[@]}" bud --isolation chroot --pull-never --timestamp "$SOURCE_DATE_EPOCH" -q -f Dockerfile -t "$IMAGE" --build-arg VERSION="v$version" \
  --build-arg REVISION="$revision" "$work/context" >/dev/null
"${buildah[@]}" push -q "$IMAGE" "docker-archive:$work/image.tar:$IMAGE"
compressed=$(gzip -9nc "$work/image.tar" | wc -c)
(( compressed < LIMIT )) || die "$compressed bytes compressed, more than $LIMIT"
mkdir -p "$(dirname "$OUT")"
mv "$work/image.tar" "$OUT"
cp "$work/context/root/usr/share/sbom/harvester-cloud-provider.cdx.json" "${OUT%.tar}.cdx.json"
dev/provenance.sh "$binary" "$(realpath "$OUT")" "$(realpath "${OUT%.tar}.cdx.json")" >"$work/provenance.json"
mv "$work/provenance.json" "${OUT%.tar}.intoto.json"
( cd "$(dirname "$OUT")" && name=$(basename "${OUT%.tar}") && sha256sum "$name.tar" "$name.cdx.json" "$name.intoto.json" >"$name.sha256" )
echo "$OUT: $(stat -c %s "$OUT") bytes, $compressed compressed; ${OUT%.tar}.cdx.json: $(jq '.components | length' "${OUT%.tar}.cdx.json") components"
echo "${OUT%.tar}.intoto.json: what it was made of (in-toto, SLSA provenance v1, not signed); ${OUT%.tar}.sha256: checksums of the three"
echo "Push it to a registry that the nodes reach, then install the chart with these two values, for example:"
echo "  buildah login REGISTRY"
echo "  buildah push \"\$(buildah pull -q docker-archive:$OUT)\" docker://REGISTRY/harvester-cloud-provider:${IMAGE##*:}"
echo "  --set image.repository=REGISTRY/harvester-cloud-provider --set image.tag=${IMAGE##*:}"
echo "sha256 $(sha256sum <"$OUT" | cut -c-64)"
