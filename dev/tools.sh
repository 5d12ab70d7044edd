#!/usr/bin/env bash
# tools.sh: gets everything that the demo and the tests run but that this project does not build itself.
#
#   dev/tools.sh            get what is missing, then print the directory that holds the programs
#   dev/tools.sh --demo     the same, but only what the demo runs
#   dev/tools.sh --conformance  all, with what Kubernetes' own suite needs (make conformance)
#   dev/tools.sh --packages get the Debian packages only
#   dev/tools.sh --print    print that directory only (exit status 1 if something is missing)
#
# Order for each program: the cache, $KUBEBUILDER_ASSETS and the PATH (only in the version wanted), else a build from its Go
# module; Kubernetes, etcd and Helm 3 in one, so that what they share is compiled once. The cache lies outside the tree, keyed by
# the versions of Kubernetes and etcd; the two Helms are beside it with their versions in their names, and links in it:
#   ${HCP_CACHE:-${XDG_CACHE_HOME:-~/.cache}/harvester-cloud-provider}/tools-<key>
set -euo pipefail

# Nobody sets these from outside: names such as ETCD stand in environments for other reasons, and tests are held to these versions.
K8S=1.36.3
ETCD=3.6.16
# Rancher and K3s run Helm 3, people at a terminal the newest one: the chart is held to both. This Helm 3 takes the same minor version
# of Kubernetes' modules as K8S, the next one another, and then a third more would be compiled.
HELM3=3.21.4
HELM4=4.3.1
PACKAGES=(iproute2 nftables iptables conntrack dnsmasq-base iputils-arping tcpdump busybox openssl curl procps jq util-linux
  zsh fish containerd runc containernetworking-plugins buildah binutils gcc libc6-dev make ca-certificates git python3)
KUBE=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl)
# For make conformance. The version of CoreDNS that Kubernetes' own installer takes.
COREDNS=1.14.2
CONFORMANCE=(e2e.test agnhost "coredns-$COREDNS")
CONFORMANCE_PACKAGES=(netcat-openbsd wget)
# Daemons of which only the program is wanted: taken out of their Debian packages, so that nothing starts them.
UNPACKED=(docker-registry:docker-registry prometheus:prometheus prometheus:promtool)
# DHCP servers beside dnsmasq that only tests run; udhcpd is busybox's.
DHCP_SERVERS=(isc-dhcp-server:dhcpd kea-dhcp4-server:kea-dhcp4)

CACHE=${HCP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/harvester-cloud-provider}
DIR=$CACHE/tools-k8s$K8S-etcd$ETCD-$(uname -m)

T0=$SECONDS
say() { printf '%4ds  %s\n' "$((SECONDS - T0))" "$*" >&2; }
die() { printf 'tools: %s\n' "$*" >&2; exit 1; }

# A mistyped option would get everything, which takes many minutes.
(( $# < 2 )) || die "it takes one option at most, and these are $#: $*"
case ${1:-} in
  '' | --demo | --conformance | --packages | --print) ;;
  *) die "there is no option $1; there are --demo, --conformance, --packages and --print" ;;
esac

# memory GIGABYTES: as much is available.
memory() { (( $(awk '/^MemAvailable/ {print int($2 / 1e6)}' /proc/meminfo) >= $1 )); }
# Go's compilers and linkers spend a quarter of their time on collecting garbage, where memory to spare would do.
# One compiler runs per processor, beside what else is built.
if [ -z "${GOGC:-}" ] && memory 12; then
  export GOGC=400
  ! memory $((12 + 2 * $(nproc))) || GOGC=off
fi

helm_file() { echo "$CACHE/helm-$1-$(uname -m)"; }
present() { local b; for b; do [ -x "$DIR/$b" ] || return 1; done; }
absent() { local b; for b; do present "$b" || echo "$b"; done; }
complete_for_the_demo() { present etcd "${KUBE[@]}" && [ "$DIR/helm3" -ef "$(helm_file "$HELM3")" ]; }
dhcp_servers_present() { local s; for s in "${DHCP_SERVERS[@]#*:}"; do command -v "$s" >/dev/null || present "dhcp-servers/usr/sbin/$s" || return; done; }
complete() {
  complete_for_the_demo && { [ "${1:-}" = --demo ] || { dhcp_servers_present && present "${UNPACKED[@]#*:}" && [ "$DIR/helm4" -ef "$(helm_file "$HELM4")" ]; }; }
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

# What Go does, unless a call of build says otherwise.
VERB=build
# What -w leaves out at the end is not made before either. Functions are inlined only where API servers and etcd spend their time.
COMPILE=("-gcflags=all=-dwarf=false -l")
for hot in std k8s.io/apimachinery/... k8s.io/apiserver/... go.etcd.io/... google.golang.org/... sigs.k8s.io/...; do
  COMPILE+=("-gcflags=$hot=-dwarf=false")
done
# [VERB='test -c'] build LDFLAGS PACKAGE...: programs called as the last parts of their packages, in the module of the working directory. All at once: while
# one is linked, which takes one processor, others are compiled. A heartbeat shows that it is alive.
build() {
  local t=$SECONDS pid new=$DIR/.new.$BASHPID program flags=$1
  shift
  say "${*##*/}: building from the Go module (takes some minutes)"
  mkdir -p "$new"
  # shellcheck disable=SC2086 # words of a verb
  go $VERB -mod=mod -trimpath "${COMPILE[@]}" -ldflags "-s -w $flags" -o "$new/" "$@" &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1
    (( (SECONDS - t) % 30 != 29 )) || say "${*##*/}: still building, $((SECONDS - t)) s"
  done
  wait "$pid" || die "cannot build $*; is the Go module proxy reachable and Go at least 1.26?"
  for program in "$new"/*; do
    mv "$program" "$DIR/"
    say "${program##*/}: built, $(($(stat -c %s "$DIR/${program##*/}") / 1000000)) MB"
  done
  rmdir "$new"
  say "built in $((SECONDS - t)) s"
}

# A compiler that has no room left names a file of its own, and not what is missing.
tell_room() {
  local need=$1 place free
  for place in "${CARGO_TARGET_DIR:-$(dirname "$0")/..}" "$CACHE" "$(go env GOCACHE 2>/dev/null || true)"; do
    while [ -n "$place" ] && [ ! -e "$place" ]; do place=$(dirname "$place"); done
    [ -n "$place" ] || continue
    free=$(df --output=avail -B1000000000 "$place" | tail -n 1 | tr -d ' ')
    (( free >= need )) || say "only $free GB are free at $(realpath "$place"): the first run writes about $need GB in all, and fails where there is no room"
  done
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

# With the libraries that are not on this machine, and not installed either.
unpack_dhcp_servers() {
  local work
  dhcp_servers_present && return
  say "taking DHCP servers out of Debian packages ${DHCP_SERVERS[*]%:*}"
  work=$(mktemp -d)
  (
    set -e
    cd "$work"
    mkdir -p archives/partial root
    apt-get update -q
    apt-get install -q -y --no-install-recommends --download-only -o Dir::Cache::archives="$work/archives" \
      -o APT::Sandbox::User=root "${DHCP_SERVERS[@]%:*}"
    for package in archives/*.deb; do dpkg-deb -x "$package" root; done
    chmod 755 root
    rm -rf "$DIR/dhcp-servers"
    mv root "$DIR/dhcp-servers"
  ) >"$CACHE/apt.log" 2>&1 &
  wait $! || die "cannot get Debian packages ${DHCP_SERVERS[*]%:*}, see $CACHE/apt.log"
  rm -rf "$work"
}

get_helm4() {
  local file module work
  file=$(helm_file "$HELM4") module="helm.sh/helm/v4"
  if [ ! -x "$file" ]; then
    command -v go >/dev/null || die "needs Go 1.26 or newer to build Helm $HELM4"
    work=$(mktemp -d)
    (
      cd "$work"
      export CGO_ENABLED=0 GOFLAGS= GOWORK=off GOTOOLCHAIN=local
      go mod init helmtools 2>/dev/null
      go mod edit -require "$module@v$HELM4"
      printf '//go:build tools\n\npackage tools\n\nimport _ "%s/cmd/helm"\n' "$module" >tools.go
      say "Helm $HELM4: resolving its Go module"
      tidy "Helm's"
      build "-X $module/internal/version.version=v$HELM4" "$module/cmd/helm"
    ) || exit 1
    mv "$DIR/helm" "$file"
    rm -rf "$work"
  fi
  ln -sfn "$file" "$DIR/helm4"
}

# tidy WHOSE: resolves the module of the working directory. What a proxy does not answer is asked once more.
tidy() {
  local log=$CACHE/gomod-${1%%\'*}.log
  go mod tidy 2>"$log" && return
  say "resolving $1 Go module has failed, once more"
  go mod tidy 2>"$log" || die "cannot resolve $1 Go module, see $log"
}

# Of Kubernetes, etcd and Helm 3 whatever is missing.
get_programs() {
  local work c todo=()
  present etcd || take etcd "$ETCD" || todo+=(go.etcd.io/etcd/server/v3)
  [ -x "$(helm_file "$HELM3")" ] || todo+=(helm.sh/helm/v3/cmd/helm)
  for c in "${KUBE[@]}"; do present "$c" || take "$c" "$K8S" || todo+=("k8s.io/kubernetes/cmd/$c"); done
  if (( ${#todo[@]} )); then
    command -v go >/dev/null || die "needs Go 1.26 or newer to build: ${todo[*]}"
    work=$(mktemp -d); trap "rm -rf '$work'" EXIT  # expanded now: the variable is local, the trap is not
    export CGO_ENABLED=0 GOFLAGS= GOWORK=off GOTOOLCHAIN=local
    cd "$work"
    kubernetes_module
    build "$(kubernetes_flags) $(helm3_flags)" "${todo[@]}"
    # etcd's package is called after the module's version.
    [ ! -e "$DIR/server" ] || mv "$DIR/server" "$DIR/etcd"
    [ ! -e "$DIR/helm" ] || mv "$DIR/helm" "$(helm_file "$HELM3")"
  fi
  ln -sfn "$(helm_file "$HELM3")" "$DIR/helm3"
}

kubernetes_flags() {
  local v="-X k8s.io/component-base/version"
  echo "$v.gitVersion=v$K8S $v.gitMajor=${K8S%%.*} $v.gitMinor=$(cut -d. -f2 <<<"$K8S")"
}

# Where it has no cluster, Helm assumes Kubernetes 1.20 unless it is told at the build, and the chart refuses that.
helm3_flags() {
  local v="-X helm.sh/helm/v3"
  echo "$v/internal/version.version=v$HELM3 $v/pkg/chartutil.k8sVersionMajor=${K8S%%.*} $v/pkg/chartutil.k8sVersionMinor=$(cut -d. -f2 <<<"$K8S")"
}

# kubernetes_module [PACKAGE...]: makes the working directory a module that can build these of Kubernetes beside its programs, etcd and
# Helm 3. It is the same module for all: with other versions of what they depend on, everything would be compiled again.
kubernetes_module() {
  local gomod module p
  go mod init kubetools 2>/dev/null
  say "Kubernetes $K8S, etcd $ETCD, Helm $HELM3: resolving their Go modules"
  # Kubernetes replaces its staging modules by directories; published they are k8s.io/<module> v0.<minor>.<patch>. A module with
  # replacements cannot be built by "go install module@version".
  gomod=$(go mod download -json "k8s.io/kubernetes@v$K8S" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
  [ -n "$gomod" ] || die "cannot get Go module k8s.io/kubernetes@v$K8S"
  for module in $(grep -oE 'k8s\.io/[a-z0-9.-]+ => \./staging' "$gomod" | cut -d' ' -f1 | sort -u); do
    go mod edit -replace "$module=$module@v0.${K8S#1.}"
  done
  go mod edit -require "k8s.io/kubernetes@v$K8S" -require "go.etcd.io/etcd/server/v3@v$ETCD" -require "helm.sh/helm/v3@v$HELM3"
  { printf '//go:build tools\n\npackage tools\n\nimport (\n'
    for p in go.etcd.io/etcd/server/v3 helm.sh/helm/v3/cmd/helm "${KUBE[@]/#/k8s.io/kubernetes/cmd/}" "${@/#/k8s.io/kubernetes/}"; do
      printf '\t_ "%s"\n' "$p"
    done
    echo ')'; } >tools.go
  tidy "Kubernetes'"
}

# Kubernetes' end-to-end tests, which hold the files that they need, the program of nearly all their pods, and cluster DNS.
get_conformance() {
  local work p
  command -v go >/dev/null || die "needs Go 1.26 or newer to build: ${CONFORMANCE[*]}"
  work=$(mktemp -d); trap "rm -rf '$work'" EXIT
  export CGO_ENABLED=0 GOFLAGS= GOWORK=off GOTOOLCHAIN=local
  mkdir "$work/kubernetes" "$work/coredns"
  if ! present e2e.test agnhost; then
    cd "$work/kubernetes"
    kubernetes_module test/e2e test/images/agnhost
    build "$(kubernetes_flags)" k8s.io/kubernetes/test/images/agnhost
    VERB='test -c' build "$(kubernetes_flags)" k8s.io/kubernetes/test/e2e
  fi
  present "coredns-$COREDNS" && return
  # With the plugins that cluster DNS needs; all of them would take far longer.
  cd "$work/coredns"
  go mod init coredns 2>/dev/null
  go mod edit -require "github.com/coredns/coredns@v$COREDNS"
  { printf 'package main\n\nimport (\n\t"github.com/coredns/coredns/coremain"\n'
    for p in errors kubernetes ready; do printf '\t_ "github.com/coredns/coredns/plugin/%s"\n' "$p"; done
    printf ')\n\nfunc main() { coremain.Run() }\n'; } >main.go
  say "CoreDNS $COREDNS: resolving its Go module"
  tidy "CoreDNS'"
  build "" coredns
  mv "$DIR/coredns" "$DIR/coredns-$COREDNS"
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
case ${1:-} in
  --packages | --demo) complete_for_the_demo || tell_room 7 ;;
  *) complete || tell_room 15 ;;
esac
get_packages "${PACKAGES[@]}"
[ "${1:-}" != --packages ] || exit 0
complete_for_the_demo || ( get_programs )
complete "${1:-}" || { unpack; unpack_dhcp_servers; get_helm4; }
complete "${1:-}" || die "not in $DIR, although everything was built: $(absent etcd "${KUBE[@]}" helm3 helm4 "${UNPACKED[@]#*:}" "${DHCP_SERVERS[@]/#*:/dhcp-servers\/usr\/sbin\/}" | paste -sd ' ')"
if [ "${1:-}" = --conformance ]; then
  get_packages "${CONFORMANCE_PACKAGES[@]}"
  present "${CONFORMANCE[@]}" || ( get_conformance )
  present "${CONFORMANCE[@]}" || die "not in $DIR, although everything was built: $(absent "${CONFORMANCE[@]}" | paste -sd ' ')"
  ln -sfn "coredns-$COREDNS" "$DIR/coredns"
fi
echo "$DIR"
