#!/usr/bin/env bash
# tools.sh: gets everything that the demo and the tests run but that this project does not build itself.
#
#   dev/tools.sh            get what is missing, then print the directory that holds the programs
#   dev/tools.sh --conformance the same, with what Kubernetes' own suite needs (make conformance)
#   dev/tools.sh --packages get the Debian packages only
#   dev/tools.sh --print    print that directory only (exit status 1 if something is missing)
#
# Order for each program: the cache, $KUBEBUILDER_ASSETS and the PATH (only in the version wanted), else a build from its Go
# module. The cache lies outside the tree, keyed by the versions of Kubernetes and etcd; the two Helms are beside it with their
# versions in their names, and links in it:
#   ${HCP_CACHE:-${XDG_CACHE_HOME:-~/.cache}/harvester-cloud-provider}/tools-<key>
set -euo pipefail

K8S=${K8S:-1.36.3}
ETCD=${ETCD:-3.6.16}
# Rancher and K3s run Helm 3, people at a terminal the newest one: the chart is held to both.
HELM3=${HELM3:-3.22.0}
HELM4=${HELM4:-4.3.1}
PACKAGES=(iproute2 nftables iptables conntrack dnsmasq-base iputils-arping tcpdump busybox openssl curl procps jq util-linux
  containerd runc containernetworking-plugins buildah binutils gcc libc6-dev make ca-certificates git python3)
KUBE=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl)
# The version of CoreDNS that Kubernetes' own installer takes.
COREDNS=${COREDNS:-1.14.2}
CONFORMANCE=(e2e.test agnhost "coredns-$COREDNS")
CONFORMANCE_PACKAGES=(netcat-openbsd wget)
# Daemons of which only the program is wanted: taken out of their Debian packages, so that nothing starts them.
UNPACKED=(docker-registry:docker-registry prometheus:prometheus prometheus:promtool)

CACHE=${HCP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/harvester-cloud-provider}
DIR=$CACHE/tools-k8s$K8S-etcd$ETCD-$(uname -m)

T0=$SECONDS
say() { printf '%4ds  %s\n' "$((SECONDS - T0))" "$*" >&2; }
die() { printf 'tools: %s\n' "$*" >&2; exit 1; }

helm_file() { echo "$CACHE/helm-$1-$(uname -m)"; }
present() { local b; for b; do [ -x "$DIR/$b" ] || return 1; done; }
complete() {
  present etcd "${KUBE[@]}" "${UNPACKED[@]#*:}" &&
    [ "$DIR/helm3" -ef "$(helm_file "$HELM3")" ] && [ "$DIR/helm4" -ef "$(helm_file "$HELM4")" ]
}
missing_packages() {
  local p
  for p; do
    [ "$(dpkg-query -W -f '${Status}' "$p" 2>/dev/null)" = "install ok installed" ] || echo "$p"
  done
}

# version_of PROGRAM FILE: the version that FILE reports, empty if it does not run.
version_of() {
  case $1 in
    etcd) "$2" --version 2>/dev/null | sed -n 's/^etcd Version: //p' ;;
    kubectl) "$2" version --client 2>/dev/null | sed -n 's/^Client Version: v//p' ;;
    *) "$2" --version 2>/dev/null | sed -n 's/^Kubernetes v//p' ;;
  esac
}

# take PROGRAM VERSION: link one that is here already in the very version wanted.
take() {
  local from
  for from in "${KUBEBUILDER_ASSETS:+$KUBEBUILDER_ASSETS/$1}" "$(command -v "$1" 2>/dev/null || true)"; do
    if [ -n "$from" ] && [ -x "$from" ] && [ "$(version_of "$1" "$from")" = "$2" ]; then
      ln -sf "$(realpath "$from")" "$DIR/$1"
      say "$1 $2: found at $from"
      return 0
    fi
  done
  return 1
}

# build PROGRAM PACKAGE LDFLAGS [VERB...]: in the module of the working directory; a heartbeat shows that it is alive.
build() {
  [ ! -x "$DIR/$1" ] || return 0
  local t=$SECONDS pid
  say "$1: building from its Go module (the first of them takes some minutes)"
  go "${@:4}" -mod=mod -trimpath -ldflags "-s -w $3" -o "$DIR/.$1.new" "$2" &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1
    (( (SECONDS - t) % 30 != 29 )) || say "$1: still building, $((SECONDS - t)) s"
  done
  wait "$pid" || die "cannot build $1 from Go module $2; is the Go module proxy reachable and Go at least 1.26?"
  mv "$DIR/.$1.new" "$DIR/$1"
  say "$1: built in $((SECONDS - t)) s, $(($(stat -c %s "$DIR/$1") / 1000000)) MB"
}

get_packages() {
  local want
  mapfile -t want < <(missing_packages "$@")
  (( ${#want[@]} )) || return 0
  command -v apt-get >/dev/null || die "needs these Debian packages, and there is no apt-get: ${want[*]}"
  [ "$(id -u)" = 0 ] || die "needs root to install: ${want[*]}"
  say "installing Debian packages: ${want[*]}"
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${want[@]}"; } \
    >"$CACHE/apt.log" 2>&1 || die "apt-get failed, see $CACHE/apt.log"
}

unpack() {
  local item package program work
  for item in "${UNPACKED[@]}"; do
    package=${item%:*} program=${item#*:}
    [ ! -x "$DIR/$program" ] || continue
    say "$program: taking it out of Debian package $package"
    work=$(mktemp -d)
    ( cd "$work" && chmod 755 . && { apt-get update -q && apt-get download -q -o APT::Sandbox::User=root "$package"; } >"$CACHE/apt.log" 2>&1 &&
      dpkg-deb -x "$package"_*.deb root && mv "root/usr/bin/$program" "$DIR/$program" ) ||
      die "cannot get $program from Debian package $package, see $CACHE/apt.log"
    rm -rf "$work"
  done
}

# get_helm VERSION LINK
get_helm() {
  local file module work
  file=$(helm_file "$1") module="helm.sh/helm/v${1%%.*}"
  if [ ! -x "$file" ]; then
    command -v go >/dev/null || die "needs Go 1.26 or newer to build Helm $1"
    work=$(mktemp -d)
    (
      cd "$work"
      export CGO_ENABLED=0 GOFLAGS= GOWORK=off GOTOOLCHAIN=local
      go mod init helmtools 2>/dev/null
      go mod edit -require "$module@v$1"
      printf '//go:build tools\n\npackage tools\n\nimport _ "%s/cmd/helm"\n' "$module" >tools.go
      say "Helm $1: resolving its Go module"
      go mod tidy 2>"$CACHE/gomod.log" || die "cannot resolve Helm's Go module, see $CACHE/gomod.log"
      build "helm-$1" "$module/cmd/helm" "-X $module/internal/version.version=v$1" build
    ) || exit 1
    mv "$DIR/helm-$1" "$file"
    rm -rf "$work"
  fi
  ln -sfn "$file" "$DIR/$2"
}

# kubernetes_module PACKAGE...: a module in the working directory that may build these of Kubernetes' programs.
kubernetes_module() {
  local gomod module p
  go mod init kubetools 2>/dev/null
  say "Kubernetes $K8S: resolving its Go module"
  # Kubernetes replaces its staging modules by directories; published they are k8s.io/<module> v0.<minor>.<patch>.
  gomod=$(go mod download -json "k8s.io/kubernetes@v$K8S" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
  [ -n "$gomod" ] || die "cannot get Go module k8s.io/kubernetes@v$K8S"
  for module in $(grep -oE 'k8s\.io/[a-z0-9.-]+ => \./staging' "$gomod" | cut -d' ' -f1 | sort -u); do
    go mod edit -replace "$module=$module@v0.${K8S#1.}"
  done
  go mod edit -require "k8s.io/kubernetes@v$K8S"
  { printf '//go:build tools\n\npackage tools\n\nimport (\n'
    for p; do printf '\t_ "k8s.io/kubernetes/%s"\n' "$p"; done
    echo ')'; } >tools.go
  go mod tidy 2>"$CACHE/gomod.log" || die "cannot resolve Kubernetes' Go module, see $CACHE/gomod.log"
}

# build_kubernetes PROGRAM PACKAGE VERB...
build_kubernetes() {
  local v="-X k8s.io/component-base/version"
  build "$1" "k8s.io/kubernetes/$2" "$v.gitVersion=v$K8S $v.gitMajor=${K8S%%.*} $v.gitMinor=$(cut -d. -f2 <<<"$K8S")" "${@:3}"
}

get_programs() {
  local work c todo=()
  take etcd "$ETCD" || todo+=(etcd)
  for c in "${KUBE[@]}"; do take "$c" "$K8S" || todo+=("$c"); done
  (( ${#todo[@]} )) || return 0
  command -v go >/dev/null || die "needs Go 1.26 or newer to build: ${todo[*]}"
  work=$(mktemp -d); trap "rm -rf '$work'" EXIT  # expanded now: the variable is local, the trap is not
  export CGO_ENABLED=0 GOFLAGS= GOWORK=off GOTOOLCHAIN=local

  # "go install module@version" refuses modules with replace directives, so each gets a small module of its own.
  mkdir "$work/etcd" "$work/kubernetes"
  cd "$work/etcd"
  go mod init etcdtools 2>/dev/null
  go mod edit -require "go.etcd.io/etcd/server/v3@v$ETCD"
  printf '//go:build tools\n\npackage tools\n\nimport _ "go.etcd.io/etcd/server/v3"\n' >tools.go
  say "etcd $ETCD: resolving its Go module"
  go mod tidy 2>"$CACHE/gomod.log" || die "cannot resolve etcd's Go module, see $CACHE/gomod.log"
  build etcd go.etcd.io/etcd/server/v3 "" build

  cd "$work/kubernetes"
  kubernetes_module "${KUBE[@]/#/cmd/}"
  for c in "${KUBE[@]}"; do build_kubernetes "$c" "cmd/$c" build; done
}

# Kubernetes' end-to-end tests, which hold the files that they need, the program of nearly all their pods, and cluster DNS.
get_conformance() {
  local work p
  command -v go >/dev/null || die "needs Go 1.26 or newer to build: ${CONFORMANCE[*]}"
  work=$(mktemp -d); trap "rm -rf '$work'" EXIT
  export CGO_ENABLED=0 GOFLAGS= GOWORK=off GOTOOLCHAIN=local
  mkdir "$work/kubernetes" "$work/coredns"
  cd "$work/kubernetes"
  kubernetes_module test/e2e test/images/agnhost
  build_kubernetes agnhost test/images/agnhost build
  build_kubernetes e2e.test test/e2e test -c

  # With the plugins that cluster DNS needs; all of them would take three times as long.
  cd "$work/coredns"
  go mod init dnstools 2>/dev/null
  go mod edit -require "github.com/coredns/coredns@v$COREDNS"
  { printf 'package main\n\nimport (\n\t"github.com/coredns/coredns/coremain"\n'
    for p in errors kubernetes ready; do printf '\t_ "github.com/coredns/coredns/plugin/%s"\n' "$p"; done
    printf ')\n\nfunc main() { coremain.Run() }\n'; } >main.go
  say "CoreDNS $COREDNS: resolving its Go module"
  go mod tidy 2>"$CACHE/gomod.log" || die "cannot resolve CoreDNS' Go module, see $CACHE/gomod.log"
  build "coredns-$COREDNS" . "" build
}

if [ "${1:-}" = --print ]; then
  echo "$DIR"
  complete && [ -z "$(missing_packages "${PACKAGES[@]}")" ]
  exit
fi
mkdir -p "$DIR"
# Two runs at once share the cache: the second one waits for the first and then finds everything there.
exec 9>"$CACHE/tools.lock"
flock -n 9 || { say "another run is filling the cache, waiting for it"; flock 9; }
get_packages "${PACKAGES[@]}"
[ "${1:-}" != --packages ] || exit 0
complete || { unpack; get_helm "$HELM3" helm3; get_helm "$HELM4" helm4; }
present etcd "${KUBE[@]}" || ( get_programs )
complete || die "some programs are still missing in $DIR"
if [ "${1:-}" = --conformance ]; then
  get_packages "${CONFORMANCE_PACKAGES[@]}"
  present "${CONFORMANCE[@]}" || ( get_conformance )
  present "${CONFORMANCE[@]}" || die "some programs are still missing in $DIR"
  ln -sfn "coredns-$COREDNS" "$DIR/coredns"
fi
echo "$DIR"
