//! Standard output. A reader may close it early (`| head`), which is neither an error nor a reason to stop.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};

/// Writes `text` unchanged.
pub fn print(text: &str) -> Result<()> {
    write_to(&mut io::stdout().lock(), text).context("failed to write to standard output")
}

/// Writes a text with a line end; returns the exit status of a command that does nothing else.
pub fn say(text: &str) -> ExitCode {
    match print(&format!("{text}\n")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn write_to(out: &mut impl Write, text: &str) -> io::Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Closed(ErrorKind);

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_has_seen_enough_is_no_error_and_a_full_disk_is_one() {
        assert!(write_to(&mut Closed(ErrorKind::BrokenPipe), "much").is_ok());
        assert!(write_to(&mut Closed(ErrorKind::StorageFull), "much").is_err());
    }

    #[test]
    fn no_command_writes_with_the_macro_that_panics_on_a_closed_pipe() {
        for (file, source) in [
            ("announcer.rs", include_str!("announcer.rs")),
            ("ccm/mod.rs", include_str!("ccm/mod.rs")),
            ("completion.rs", include_str!("completion.rs")),
            ("generate_addon.rs", include_str!("generate_addon.rs")),
            ("probe.rs", include_str!("probe.rs")),
        ] {
            let panics =
                |line: &str| line.trim_start().starts_with("println!") || line.trim_start().starts_with("print!");
            assert!(!source.lines().any(panics), "{file}");
        }
    }
}
