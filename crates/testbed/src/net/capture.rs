//! Recording frames with tcpdump, and reading them back.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::net::namespace::Namespace;
use crate::process::Process;
use crate::wait::wait_until;

/// One frame as it was on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// When, since the Unix epoch.
    pub at: Duration,
    /// From the destination MAC to the last byte of payload, without checksum.
    pub data: Vec<u8>,
}

/// tcpdump on an interface; ends when dropped.
#[derive(Debug)]
pub struct Capture {
    process: Process,
    file: PathBuf,
}

impl Capture {
    /// Records until stopped. It returns when tcpdump is listening, so what follows is recorded.
    pub(crate) fn start(namespace: &Namespace, interface: &str, filter: &str) -> Result<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let name = format!("tcpdump-{interface}-{}", COUNTER.fetch_add(1, Ordering::Relaxed));
        let file = namespace.dir().path().join(format!("{}.{name}.pcap", namespace.name()));
        let mut command = Command::new("tcpdump");
        // -Z root: it would become a user that may not write here. -U and immediate mode: a frame is in the file at
        // once.
        command.args([
            "-i",
            interface,
            "-n",
            "-U",
            "--immediate-mode",
            "-s",
            "0",
            "-Z",
            "root",
            "--time-stamp-precision=nano",
            "-w",
        ]);
        command.arg(&file);
        if !filter.is_empty() {
            command.arg(filter);
        }
        let process = namespace.spawn(&name, command)?;
        wait_until(&format!("tcpdump on {interface} of {}", namespace.name()), Duration::from_secs(10), || {
            process.check().map_err(|error| error.to_string())?;
            let log = process.log_tail(5);
            if log.contains("listening on") { Ok(()) } else { Err(log) }
        })?;
        Ok(Self { process, file })
    }

    /// All frames so far.
    pub fn frames(&self) -> Result<Vec<Frame>> {
        let data = std::fs::read(&self.file).with_context(|| format!("failed to read {}", self.file.display()))?;
        parse(&data).with_context(|| format!("{} is no capture file", self.file.display()))
    }

    /// How many frames so far match `filter` as well.
    pub fn count(&self, filter: &str) -> Result<usize> {
        let mut command = Command::new("tcpdump");
        command.args(["-n", "-r"]).arg(&self.file).arg(filter);
        Ok(crate::process::run(&mut command)?.lines().count())
    }

    /// What tcpdump says about the frames that match `filter`, one line each with link-level header: for messages of
    /// tests.
    pub fn text(&self, filter: &str) -> Result<String> {
        let mut command = Command::new("tcpdump");
        command.args(["-n", "-e", "-tt", "-r"]).arg(&self.file).arg(filter);
        crate::process::run(&mut command)
    }

    /// The file it writes.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Ends it and returns all frames.
    pub fn stop(self) -> Result<Vec<Frame>> {
        self.process.stop(Duration::from_secs(5))?;
        self.frames()
    }
}

/// Reads a capture file with nanosecond stamps in this machine's byte order. A frame that is not yet complete is left
/// out.
fn parse(data: &[u8]) -> Result<Vec<Frame>> {
    const HEADER: usize = 24;
    const RECORD: usize = 16;
    let word = |at: usize| {
        data.get(at..at + 4).map(|bytes| u32::from_ne_bytes(bytes.try_into().expect("the slice has four bytes")))
    };
    match word(0) {
        None => return Ok(Vec::new()), // not even the header is written yet
        Some(0xa1b2_3c4d) => {}
        Some(other) => bail!("unknown magic {other:#x}"),
    }
    let mut frames = Vec::new();
    let mut at = HEADER;
    while let (Some(seconds), Some(nanos), Some(length)) = (word(at), word(at + 4), word(at + 8)) {
        let begin = at + RECORD;
        let Some(frame) = data.get(begin..begin + length as usize) else { break };
        frames.push(Frame { at: Duration::new(seconds.into(), nanos), data: frame.to_vec() });
        at = begin + length as usize;
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_a_half_written_one_is_left_out() {
        let mut file = 0xa1b2_3c4d_u32.to_ne_bytes().to_vec();
        file.resize(24, 0);
        for (seconds, nanos, payload) in [(7_u32, 5_u32, &b"first"[..]), (8, 0, b"second")] {
            let length = u32::try_from(payload.len()).unwrap();
            for value in [seconds, nanos, length, length] {
                file.extend_from_slice(&value.to_ne_bytes());
            }
            file.extend_from_slice(payload);
        }
        let frames = parse(&file).unwrap();
        assert_eq!(frames.len(), 2);
        assert_eq!(frames[0], Frame { at: Duration::new(7, 5), data: b"first".to_vec() });
        assert_eq!(parse(&file[..file.len() - 1]).unwrap().len(), 1);
        assert!(parse(b"something else").is_err());
    }
}
