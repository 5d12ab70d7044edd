//! How commands begin: words that cannot be read, and a runtime of one thread.

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

/// A command line that cannot be read.
pub const WRONG_USAGE: u8 = 2;

/// The arguments of a command. Otherwise what is wrong with them has been said, or the help, and this is the status.
pub fn parsed<A: Parser>(arguments: &[String]) -> Result<A, ExitCode> {
    A::try_parse_from(arguments).map_err(|error| refused(&error))
}

/// Says what is wrong, or the help.
pub fn refused(error: &clap::Error) -> ExitCode {
    // A reader that has seen enough (`| head`) is no error of ours.
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(WRONG_USAGE))
}

/// Does the work on this thread.
pub fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(work)
}
