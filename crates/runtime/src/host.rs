//! The machine that the process runs on.

/// Its host name; empty if the kernel does not tell. In a pod without the host's network it is the pod's.
pub fn name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}
