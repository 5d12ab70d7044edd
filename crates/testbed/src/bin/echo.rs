//! `echo [PORT...]`: the workload as a program. `POD_NAME` and `NODE_NAME` say who it is; the port is 8080 unless told
//! otherwise.

use anyhow::{Context, Result};
use testbed::echo::{Who, serve};

fn main() -> Result<()> {
    let ports = std::env::args()
        .skip(1)
        .map(|word| word.parse().with_context(|| format!("{word:?} is no port: 1 to 65535 are accepted")))
        .collect::<Result<Vec<u16>>>()?;
    let ports = if ports.is_empty() { vec![8080] } else { ports };
    let name = |variable: &str| std::env::var(variable).ok();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let who = Who {
        pod: name("POD_NAME").unwrap_or_else(|| host.trim().to_owned()),
        node: name("NODE_NAME").unwrap_or_else(|| "?".to_owned()),
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("failed to make a runtime")?;
    println!("pod={} node={} listening on {ports:?}", who.pod, who.node);
    runtime.block_on(serve(who, &ports)).with_context(|| format!("failed to listen on {ports:?}"))
}
