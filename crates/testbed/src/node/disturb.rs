//! What happens to machines beside a loss of power.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cluster::sim_node::ProxyMode;
use crate::node::config;
use crate::node::machine::{Machine, PODS};

impl Machine {
    /// Stands still for so long, as a live migration stops a virtual machine: nothing runs, and nobody is answered,
    /// but carriers stay.
    /// How long it was: longer on a machine that is busy.
    pub fn pause(&self, length: Duration) -> Result<Duration> {
        let host = self.host()?;
        let nics = ["eth0", "mgmt0"].map(|name| host.nic(name));
        let begin = Instant::now();
        for nic in &nics {
            nic.isolate()?;
        }
        let seconds = length.as_secs_f64();
        let stood = self.exec(["sh", "-c", &format!("kill -s STOP -- -1; sleep {seconds}; kill -s CONT -- -1")]);
        for nic in &nics {
            nic.plug()?;
        }
        stood.map(|_| begin.elapsed())
    }

    /// Another least time between two updates of kube-proxy's rules, from now on.
    pub fn set_proxy_min_sync(&self, least: Duration) -> Result<()> {
        self.write_proxy_config(least)?;
        if self.is_on() {
            // What keeps it running starts it again.
            let end = "for p in /proc/[0-9]*; do if grep -qsx kube-proxy $p/comm; then kill ${p#/proc/}; fi; done";
            self.exec(["sh", "-c", end])?;
        }
        Ok(())
    }

    /// kube-proxy's configuration.
    pub(super) fn write_proxy_config(&self, least: Duration) -> Result<()> {
        let kubeconfig = self.config.join("kube-proxy.kubeconfig");
        let content = config::kube_proxy(&kubeconfig, self.name(), proxy_word(self.spec.proxy), PODS, least);
        self.dir.write("config/kube-proxy.json", content.to_string()).map(drop)
    }
}

fn proxy_word(mode: ProxyMode) -> &'static str {
    if mode == ProxyMode::Iptables { "iptables" } else { "nftables" }
}
