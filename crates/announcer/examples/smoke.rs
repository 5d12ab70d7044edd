//! temp
#[tokio::main]
async fn main() {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let config = announcer::Config::from_env_and_args(std::env::vars(), std::env::args().skip(1), "host").unwrap();
    let stop = runtime::shutdown::on_signals().unwrap();
    if let Err(e) = announcer::run(config, stop).await { eprintln!("ERROR {e} {:?}", std::error::Error::source(&e)); std::process::exit(1); }
}
