#!/usr/bin/env bash
# chart.sh: makes the chart's archives and their indexes from charts/harvester-cloud-provider, in both forms:
#   OUT/plain/harvester-cloud-provider-<version>.tgz                    for Helm, K3s, RKE2
#   OUT/rancher/harvester-cloud-provider-<line>+up<version>.tgz         for Rancher's Apps
# The same tree gives the same bytes. Archives of other versions that are there already stay, and in the index.
#
#   OUT (target/charts), LINE (109.1.0: a version of Rancher's catalogue), HELM, SOURCE_DATE_EPOCH (the chart's last commit)
set -euo pipefail
cd "$(dirname "$0")/.."
CHART=charts/harvester-cloud-provider
OUT=${OUT:-${CARGO_TARGET_DIR:-target}/charts}
LINE=${LINE:-109.1.0}
HELM=${HELM:-$(dev/tools.sh --print || true)/helm3}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct -- "$CHART" 2>/dev/null || true)}
: "${SOURCE_DATE_EPOCH:=0}"
die() { printf 'chart: %s\n' "$*" >&2; exit 1; }
[ -x "$HELM" ] || die "$HELM is not there; run dev/tools.sh once to get it"

# One version for the program, the chart and the image: three releases of the chart that this one follows had them disagree.
version=$(dev/version.sh)
field() { sed -n "s/^$1: *//p" "$CHART/Chart.yaml"; }
[ "$(field version)" = "$version" ] || die "Chart.yaml has version $(field version), Cargo.toml $version"
[ "$(field appVersion)" = "v$version" ] || die "Chart.yaml has appVersion $(field appVersion), which should be v$version"

# The Rancher minor and the first Kubernetes minor that a line is not for.
case ${LINE%%.*} in
  107) rancher=2.12 kubernetes=1.34 ;;
  108) rancher=2.13 kubernetes=1.35 ;;
  109) rancher=2.14 kubernetes=1.36 ;;
  *) die "LINE=$LINE: known are 107 (Rancher 2.12), 108 (2.13) and 109 (2.14)" ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HELM_CACHE_HOME=$work/home HELM_CONFIG_HOME=$work/home HELM_DATA_HOME=$work/home

# pack FORM: archives $work/FORM/harvester-cloud-provider. Helm writes its Chart.yaml anew, without comments and in alphabetical
# order, and the time of day into the archive; so its archive is opened and packed again. A Helm 3 that was built from its module assumes
# Kubernetes 1.20 where it has no cluster, which the chart refuses.
pack() {
  local form=$1 file
  mkdir -p "$work/$form-packed" "$OUT/$form"
  "$HELM" lint --strict --quiet "$work/$form/harvester-cloud-provider" >&2
  "$HELM" package "$work/$form/harvester-cloud-provider" --destination "$work/$form-packed" >/dev/null
  file=$(cd "$work/$form-packed" && echo *.tgz)
  [ "$("$HELM" template --kube-version 1.28.0 "$work/$form-packed/$file" | grep -c "image: \"rancher/harvester-cloud-provider:v$version\"")" = 3 ] ||
    die "$file does not render the images of v$version"
  mkdir "$work/$form-open"
  tar -xzf "$work/$form-packed/$file" -C "$work/$form-open"
  tar -C "$work/$form-open" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
    --format=ustar -cf - harvester-cloud-provider | gzip -9n >"$OUT/$form/$file"
  "$HELM" repo index "$OUT/$form"
  sed -i -E "s/^( *(created|generated): ).*/\1\"$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%T.000000000Z)\"/" "$OUT/$form/index.yaml"
  echo "$OUT/$form/$file: $(stat -c %s "$OUT/$form/$file") bytes, sha256 $(sha256sum <"$OUT/$form/$file" | cut -c-64)"
}

mkdir "$work/plain" "$work/rancher"
cp -r "$CHART" "$work/plain/"
cp -r "$CHART" "$work/rancher/"
sed -i -E -e "s/^version: .*/version: $LINE+up$version/" \
  -e "s/(cattle.io\/rancher-version: ).*/\1\">= $rancher.0-0 < ${rancher%.*}.$((${rancher#*.} + 1)).0-0\"/" \
  -e "s/(cattle.io\/kube-version: ).*/\1\">= 1.28.0-0 < $kubernetes.0-0\"/" \
  -e "s/(cattle.io\/upstream-version: ).*/\1$version/" \
  -e 's/^annotations:/&\n  catalog.cattle.io\/permits-os: linux/' \
  -e '$a icon: file://assets/logos/harvester.svg' "$work/rancher/harvester-cloud-provider/Chart.yaml"
grep -q "upstream-version: $version\$" "$CHART/Chart.yaml" || die "Chart.yaml's upstream-version should be $version"
pack plain
pack rancher
