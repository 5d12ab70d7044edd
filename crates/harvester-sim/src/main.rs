//! `harvester-sim`: the stand-in for the Harvester side as a program. Flags are in `cli::args`, what they do in
//! `cli::commands`.

mod cli;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> ExitCode {
    // The client library logs every refusal as an error. Refusals are normal here, and are reported where they matter.
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,kube_client=off,kube_runtime=warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match cli::commands::run(cli::args::Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("harvester-sim: {}", cli::commands::in_words(&error));
            ExitCode::FAILURE
        }
    }
}
