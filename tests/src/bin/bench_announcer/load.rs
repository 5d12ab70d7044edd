//! Busy cores, and how busy they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Threads that do nothing but turn, until this is dropped.
pub struct Busy {
    done: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    /// So many.
    pub fn threads(count: usize) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let turn = |done: Arc<AtomicBool>| {
            std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..count).map(|_| turn(Arc::clone(&done))).collect();
        Self { done, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Ticks of all processors up to a moment.
pub struct Ticks {
    busy: f64,
    all: f64,
}

impl Ticks {
    /// In per cent of all of them, with one decimal.
    pub fn busy_since(&self, before: &Self) -> f64 {
        ((self.busy - before.busy) / (self.all - before.all) * 1000.0).round() / 10.0
    }
}

/// Now.
pub fn ticks() -> Ticks {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let fields: Vec<f64> = line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    let all: f64 = fields.iter().sum();
    Ticks { busy: all - fields.iter().skip(3).take(2).sum::<f64>(), all }
}
