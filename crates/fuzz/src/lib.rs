//! Hostile input for everything that reads from the wire: ARP, neighbour discovery, claims, DHCP for both families.
//! What a LAN can send must neither end the announcer nor make it believe what was not said.
//!
//! [`targets`]: one function per reader, which panics where a promise is broken. [`mutate`]: seeded changes of valid
//! input; no coverage guides them, so each target repairs checksums and numbers that would hide the rest. `corpus/`
//! keeps inputs that once broke something, or that no mutation finds; `cargo test` runs all of them.

pub mod mutate;
pub mod targets;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where inputs of a target are kept, as hexadecimal text.
pub fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// All inputs of a target by file name; none if it has no directory yet.
pub fn read_corpus(target: &str) -> io::Result<Vec<(String, Vec<u8>)>> {
    let entries = match fs::read_dir(corpus(target)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = from_hex(&fs::read_to_string(&path)?)
            .ok_or_else(|| io::Error::other(format!("{}: not pairs of hexadecimal digits", path.display())))?;
        all.push((name, bytes));
    }
    all.sort();
    Ok(all)
}

/// Reads pairs of hexadecimal digits; white space and what follows `#` on a line is skipped.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let digits: Option<Vec<u32>> =
        lines.flat_map(str::chars).filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).ok()).collect()
}

/// The reverse, 32 bytes per line.
pub fn to_hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).expect("a half byte");
    let line = |chunk: &[u8]| {
        let digits = chunk.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
        digits.chain(['\n']).collect::<String>()
    };
    bytes.chunks(32).map(line).collect()
}
