#!/usr/bin/env bash
# private.sh COMMAND...: runs COMMAND in pid, mount, network and host name namespaces of its own, with an own /run and TMPDIR.
# When COMMAND ends, or this script is killed, the kernel ends everything that was started in it: nothing has to be cleaned up.
# Needs root. A directory is left only if this very script is killed; it holds no processes and no mounts.
set -euo pipefail
(( $# )) || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "private: needs root" >&2; exit 1; }

dir=$(mktemp -d "${TMPDIR:-/tmp}/hcp-private.XXXXXX")
trap 'rm -rf --one-file-system "$dir"' EXIT
# Not exec: the trap has to run. The inner shell is process 1 and collects orphans; SIGTERM and Ctrl-C reach the group.
status=0
setpriv --pdeathsig KILL unshare --pid --fork --kill-child --mount-proc --mount --net --uts bash -c '
  set -e
  mount -t tmpfs -o mode=755 tmpfs /run
  mkdir -p /run/netns /run/lock
  ip link set lo up
  export TMPDIR=$1
  shift
  "$@"' private "$dir" "$@" || status=$?
exit "$status"
