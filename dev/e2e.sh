#!/usr/bin/env bash
# e2e.sh NAME...: runs these integration tests, E2E_JOBS (2) of them at a time, each in namespaces of its own; they mostly wait. Two
# that put whole nodes (kubelet, containerd) on the machine have it for themselves. Those that count lost requests need not: a request
# counts as lost when the network lost it, however long a process had to wait for its turn.
# What a test prints is shown when it has ended, so that nothing is mixed up. Fails if one of them fails, and names it.
set -euo pipefail
(( $# )) || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
jobs=${E2E_JOBS:-2}
[[ $jobs =~ ^[1-9][0-9]?$ ]] || { echo "e2e: E2E_JOBS is \"$jobs\", a number from 1 to 99 is needed" >&2; exit 2; }

logs=$(mktemp -d "${TMPDIR:-/tmp}/hcp-e2e.XXXXXX")
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$logs"' EXIT
declare -A names=() begun=()
failed=()
ended=0

# Waits for the next that ends, and shows what it said.
reap() {
  local pid name status=0 verdict=ok
  wait -n -p pid || status=$?
  name=${names[$pid]}
  unset "names[$pid]"
  ended=$((ended + 1))
  if (( status )); then
    failed+=("$name")
    verdict=FAILED
  fi
  cat "$logs/$name"
  printf '== %s: %s after %d s, %d of %d, %d s in all\n' "$name" "$verdict" $((SECONDS - begun[$name])) "$ended" "$total" "$SECONDS"
}

total=$#
alone=" installed newcomer "
for name; do
  if [[ $alone == *" $name "* ]]; then
    while (( ${#names[@]} )); do reap; done
  fi
  (( ${#names[@]} < jobs )) || reap
  dev/private.sh cargo test --workspace --no-fail-fast --test "$name" >"$logs/$name" 2>&1 &
  names[$!]=$name
  begun[$name]=$SECONDS
  if [[ $alone == *" $name "* ]]; then reap; fi
done
while (( ${#names[@]} )); do reap; done

(( ${#failed[@]} == 0 )) || { echo "e2e: failed: ${failed[*]}" >&2; exit 1; }
