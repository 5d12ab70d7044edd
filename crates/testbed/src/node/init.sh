# Process 1 of a machine, already in its own pid, mount, network, host name, ipc and cgroup namespaces.
# Variables: NODE, DISK (what survives a power loss), CONFIG, IMAGES (list of archives), TOOLS, CGROUPS (1 or 2), NODE_IP, EXTERNAL.
set -eu

mount -t proc proc /proc
# sysfs shows the devices of the network namespace it is mounted in, and each cgroup mount the machine's own part as its root.
mount -t sysfs sysfs /sys
if [ "$CGROUPS" = 2 ]; then
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  # A cgroup that hands controllers on may not hold processes itself.
  mkdir -p /sys/fs/cgroup/init
  while read -r process; do echo "$process" >/sys/fs/cgroup/init/cgroup.procs || true; done </sys/fs/cgroup/cgroup.procs
  for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control || true
  done
else
  mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
  for controller in cpu cpuacct cpuset memory devices freezer blkio pids; do
    mkdir "/sys/fs/cgroup/$controller"
    mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller"
  done
  mkdir /sys/fs/cgroup/systemd
  mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
fi

# What the daemons write below /etc, /var and /opt stays on the machine's own disk.
for dir in etc var opt; do
  mkdir -p "$DISK/$dir/upper" "$DISK/$dir/work"
  mount -t overlay overlay -o "lowerdir=/$dir,upperdir=$DISK/$dir/upper,workdir=$DISK/$dir/work" "/$dir" || {
    echo "no overlay on $DISK: set TMPDIR to a directory on ext4 or xfs" >&2
    exit 1
  }
done
# containerd makes overlays itself, and their upper directories cannot lie on an overlay.
mkdir -p /var/lib/containerd /var/lib/kubelet "$DISK/containerd" "$DISK/kubelet"
mount --bind "$DISK/containerd" /var/lib/containerd
mount --bind "$DISK/kubelet" /var/lib/kubelet
# Copies of named network namespaces would keep those alive after their owners removed them.
for place in /run/netns/* /run/netns; do umount -l "$place" 2>/dev/null || true; done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/netns /run/sysctl
mount --make-rshared /

# The kubelet insists on these; they belong to the whole computer, so the machine gets a picture of them.
pretend() {
  echo "$2" >"/run/sysctl/$(echo "$1" | tr / .)"
  mount --bind "/run/sysctl/$(echo "$1" | tr / .)" "/proc/sys/$1"
}
pretend vm/overcommit_memory 1
pretend vm/panic_on_oom 0
pretend kernel/panic 10
pretend kernel/panic_on_oops 1
pretend kernel/keys/root_maxkeys 1000000
pretend kernel/keys/root_maxbytes 25000000

# keep NAME COMMAND...: what an init system would do.
keep() {
  log=$DISK/log/$1.log
  shift
  while :; do
    "$@" >>"$log" 2>&1 </dev/null || true
    sleep 0.5
  done
}

mkdir -p "$DISK/log"
keep containerd containerd --config "$CONFIG/containerd.toml" &
keep kube-proxy "$TOOLS/kube-proxy" --config="$CONFIG/kube-proxy.json" --v=2 &
n=0
until ctr version >/dev/null 2>&1; do
  n=$((n + 1))
  [ $n -lt 600 ] || { echo "containerd does not answer, see $DISK/log/containerd.log" >&2; exit 1; }
  sleep 0.05
done
while read -r archive; do
  # What an earlier boot imported is still on the disk.
  mark="$DISK/containerd/imported.$(basename "$archive")"
  [ "$mark" -nt "$archive" ] && continue
  ctr -n k8s.io images import "$archive" && touch "$mark"
done <"$IMAGES"
keep kubelet "$TOOLS/kubelet" --config="$CONFIG/kubelet.json" --kubeconfig="$CONFIG/kubelet.kubeconfig" \
  --hostname-override="$NODE" --node-ip="$NODE_IP" ${EXTERNAL:+--cloud-provider=external} --v=2 &

wait # and collects the orphans that land on process 1
