//! The first HTTP reply of an address, as a client sees it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use testbed::Task;
use tokio::sync::mpsc;

use crate::bench_bed::{BenchBed, Shared};
use crate::progress::{EVERY, say};

/// Asks addresses over HTTP from the client host until they answer.
pub struct Sampler {
    targets: mpsc::UnboundedSender<(String, IpAddr)>,
    asked: Shared<usize>,
    answers: Shared<BTreeMap<String, Instant>>,
    _task: Task,
}

impl Sampler {
    /// Nothing is asked yet.
    pub fn start(bench: &BenchBed) -> Result<Self> {
        let (targets, mut receiver) = mpsc::unbounded_channel::<(String, IpAddr)>();
        let answers: Shared<BTreeMap<String, Instant>> = Shared::default();
        let shared = answers.clone();
        let task = bench.bed.lan.client().task("sampler", move || async move {
            while let Some((name, address)) = receiver.recv().await {
                let answers = shared.clone();
                tokio::spawn(async move {
                    let target = SocketAddr::from((address, 80));
                    // A new connection each time: the first segment of one that came too early is repeated only after a
                    // second.
                    while testbed::echo::get(target, Duration::from_millis(300)).await.is_err() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    answers.lock().insert(name, Instant::now());
                });
            }
            std::future::pending::<()>().await;
        })?;
        Ok(Self { targets, asked: Shared::default(), answers, _task: task })
    }

    /// Asks this address from now on.
    pub fn ask(&self, name: &str, address: IpAddr) {
        *self.asked.lock() += 1;
        let _ = self.targets.send((name.to_owned(), address));
    }

    /// When each Service answered first, once all have.
    pub async fn finish(self, deadline: Duration) -> Result<BTreeMap<String, Instant>> {
        let (begin, mut told) = (Instant::now(), Instant::now());
        let asked = *self.asked.lock();
        loop {
            let answers = self.answers.lock().clone();
            if answers.len() == asked {
                return Ok(answers);
            }
            if begin.elapsed() > deadline {
                bail!("{} of {asked} addresses that were asked over HTTP never answered", asked - answers.len());
            }
            if told.elapsed() > EVERY {
                say(format!("  {} of {asked} addresses answer", answers.len()));
                told = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
