//! `probe`: waits until every URL has answered 200, and until workloads work. The image contains no other program that
//! the chart's test could run.

mod workloads;

use std::borrow::Cow;
use std::net::Ipv6Addr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use kube::Config;
use runtime::client::{Settings, connect};
use runtime::error::chain;
use tokio::time::{Instant, sleep};

use crate::{PRODUCT, VERSION, entry, stdout};

use self::workloads::{Name, Workloads};

/// Time-out; long enough for a workload that is being replaced.
const PATIENCE: Duration = Duration::from_secs(20);
const PERIOD: Duration = Duration::from_millis(500);
/// How often it says that it still waits.
const TELL_EVERY: Duration = Duration::from_secs(2);

const PROBE: &str = "harvester-cloud-provider probe";

const EXAMPLES: &str = "\
Examples:
  harvester-cloud-provider probe https://127.0.0.1:10258/readyz http://127.0.0.1:2112/readyz
  harvester-cloud-provider probe --lease kube-system/cloud-controller-manager --announcers kube-system/kube-vip

Exit status: 0 all is well, 1 something is not after 20 s, 2 wrong usage.
URLs are asked without looking at certificates: the ones served here are made at each start.";

/// Asks each URL until it answers 200, and looks at each Lease and DaemonSet until it is as it should be.
#[allow(clippy::doc_markdown)] // These texts are the help.
#[derive(Debug, Parser)]
#[command(name = PROBE, bin_name = PROBE, version = VERSION, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Arguments {
    /// What has to answer 200.
    #[arg(value_name = "URL", value_parser = url)]
    urls: Vec<String>,
    /// A Lease that its holder has to renew.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    lease: Vec<Name>,
    /// A DaemonSet whose pods have to be ready on each node that it wants.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    daemonset: Vec<Name>,
    /// The DaemonSet of announcers in mode "node": also the Lease of each of these nodes has to be renewed.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    announcers: Vec<Name>,
}

/// Runs the command; `arguments` begin with the program's name.
pub fn main(arguments: &[String]) -> ExitCode {
    let arguments: Arguments = match entry::parsed(arguments) {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    match entry::run(all(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

async fn all(arguments: &Arguments) -> anyhow::Result<()> {
    for url in &arguments.urls {
        if let Err(error) = until(async || once(url).await).await {
            if let Some(hint) = where_to_look(url) {
                eprintln!("{hint}");
            }
            return Err(error);
        }
        stdout::print(&format!("{url} answers\n"))?;
    }
    if arguments.lease.is_empty() && arguments.daemonset.is_empty() && arguments.announcers.is_empty() {
        return Ok(());
    }
    let workloads = Workloads::of_this_cluster().await?;
    for name in &arguments.lease {
        until(async || workloads.lease(name).await).await?;
        stdout::print(&format!("Lease {name} is renewed\n"))?;
    }
    for name in &arguments.daemonset {
        until(async || workloads.daemonset(name).await.map(drop)).await?;
        stdout::print(&format!("DaemonSet {name} is ready on each node that it wants\n"))?;
    }
    for name in &arguments.announcers {
        until(async || workloads.announcers(name).await).await?;
        stdout::print(&format!("DaemonSet {name} is ready, and renews its Lease, on each node that it wants\n"))?;
    }
    Ok(())
}

/// Repeats the attempt until it succeeds or the time is over, and says meanwhile that it waits and for what.
async fn until(mut attempt: impl AsyncFnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut progress = Progress::default();
    loop {
        let Err(error) = attempt().await else { return Ok(()) };
        let waited = begun.elapsed();
        if waited >= PATIENCE {
            return Err(error.context(format!("not well after {} s", PATIENCE.as_secs())));
        }
        if let Some(line) = progress.line(waited, &chain(error.as_ref())) {
            eprintln!("{line}");
        }
        sleep(PERIOD).await;
    }
}

/// What was said while waiting. No two lines are the same.
#[derive(Debug, Default)]
struct Progress {
    reason: String,
    said_at: Duration,
}

impl Progress {
    /// The next line, if it is time for one: each new reason at once, otherwise that it still waits.
    fn line(&mut self, waited: Duration, why: &str) -> Option<String> {
        let of = format!("{} s of {} s", waited.as_secs(), PATIENCE.as_secs());
        if why != self.reason {
            why.clone_into(&mut self.reason);
            self.said_at = waited;
            return Some(format!("waiting, {of}: {why}"));
        }
        if waited.saturating_sub(self.said_at) < TELL_EVERY {
            return None;
        }
        self.said_at = waited;
        Some(format!("waiting, {of}"))
    }
}

fn url(text: &str) -> Result<String, String> {
    parsed(text).map(|_| text.to_owned())
}

/// The objects behind a URL, which the chart writes after `#`. A refused connection alone does not tell that no pod is
/// running there.
fn where_to_look(url: &str) -> Option<String> {
    let (_, objects) = url.split_once('#')?;
    let objects = objects.replace(',', " ");
    Some(format!(
        "where a connection is refused or not answered, no pod is ready behind the Service; look at: kubectl get \
         {objects} -o wide, and kubectl describe {objects}, in the namespace of the release"
    ))
}

/// Adds brackets to an IPv6 address in a URL. The chart takes the host from an environment variable of its pod, which
/// has no brackets.
fn bracketed(url: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = url.split_once("://") else { return url.into() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if host.parse::<Ipv6Addr>().is_ok() { format!("{scheme}://[{host}]{path}").into() } else { url.into() }
}

fn parsed(url: &str) -> Result<http::Uri, String> {
    let uri = bracketed(url).parse::<http::Uri>().ok();
    uri.filter(|uri| uri.host().is_some() && uri.scheme().is_some())
        .ok_or_else(|| format!("{url:?} is not a URL with scheme and host, such as https://127.0.0.1:10258/readyz"))
}

async fn once(url: &str) -> anyhow::Result<()> {
    let uri = parsed(url).map_err(anyhow::Error::msg)?;
    let path = uri.path().to_owned();
    let mut config = Config::new(uri);
    config.accept_invalid_certs = true;
    let mut settings = Settings::new("probed", &PRODUCT);
    settings.request_timeout = Duration::from_secs(2);
    settings.retry = false;
    // The client prepends the path of its base URL to that of each request, so the base URL must not have one.
    config.cluster_url = http::uri::Builder::from(config.cluster_url)
        .path_and_query("/")
        .build()
        .with_context(|| format!("{url} is not a URL"))?;
    let client = connect(config, &settings).with_context(|| format!("cannot ask {url}"))?;
    let request = http::Request::get(path).body(Vec::new()).with_context(|| format!("{url} is not a URL"))?;
    client.request_text(request).await.with_context(|| format!("{url} does not answer 200"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn only_200_counts_and_the_path_is_asked_as_given() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        // The chart names what is asked behind #: for the log, not for the server.
        let url = format!("http://{}/readyz#daemonset/kube-vip", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let mut asked = Vec::new();
            for status in ["503 Service Unavailable", "200 OK"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let n = stream.read(&mut request).await.unwrap();
                asked.push(String::from_utf8_lossy(&request[..n]).lines().next().unwrap().to_owned());
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            asked
        });
        assert!(once(&url).await.is_err());
        once(&url).await.unwrap();
        assert_eq!(server.await.unwrap(), ["GET /readyz HTTP/1.1"; 2]);
    }

    #[tokio::test]
    async fn a_failure_names_what_was_asked_for_and_where() {
        // The port is ours, and nobody listens there.
        let taken = tokio::net::TcpSocket::new_v4().unwrap();
        taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let url = format!("http://{}/readyz#deployment/ccm,service/ccm-test", taken.local_addr().unwrap());
        let said = chain(once(&url).await.unwrap_err().as_ref());
        let expected = format!("{url} does not answer 200: cannot connect to the probed server at ");
        assert!(said.starts_with(&expected), "{said}");
    }

    #[test]
    fn who_does_not_answer_is_named_with_what_to_look_at() {
        let hint = where_to_look("http://10.96.0.7/readyz#daemonset/kube-vip,service/kube-vip-test").unwrap();
        assert!(hint.contains("kubectl get daemonset/kube-vip service/kube-vip-test"), "{hint}");
        assert_eq!(where_to_look("https://127.0.0.1:10258/readyz"), None);
    }

    #[test]
    fn an_ipv6_address_gets_the_brackets_that_it_lacks() {
        for (given, expected) in [
            ("https://fd00:10:96::17/readyz", "https://[fd00:10:96::17]/readyz"),
            ("http://::1", "http://[::1]"),
            ("http://[::1]:2112/readyz", "http://[::1]:2112/readyz"),
            ("https://10.96.0.1:443/readyz", "https://10.96.0.1:443/readyz"),
        ] {
            assert_eq!(bracketed(given), expected);
            assert!(bracketed(given).parse::<http::Uri>().is_ok());
        }
    }

    #[test]
    fn who_waits_is_told_every_two_seconds_and_never_the_same_twice() {
        let mut progress = Progress::default();
        let tell = [
            (0, "refused", Some("waiting, 0 s of 20 s: refused")),
            (500, "refused", None),
            (1999, "refused", None),
            (2000, "refused", Some("waiting, 2 s of 20 s")),
            (2500, "503", Some("waiting, 2 s of 20 s: 503")),
            (4000, "503", None),
            (4600, "503", Some("waiting, 4 s of 20 s")),
        ];
        for (ms, why, expected) in tell {
            assert_eq!(progress.line(Duration::from_millis(ms), why).as_deref(), expected, "{ms} ms");
        }
    }

    #[test]
    fn the_help_is_plain_text() {
        use clap::CommandFactory;
        let help = Arguments::command().render_long_help().to_string();
        assert!(!help.contains('`'), "{help}");
    }

    #[tokio::test]
    async fn what_is_no_url_is_named() {
        for text in ["https://$(HOST)/readyz", "readyz", "127.0.0.1"] {
            assert!(once(text).await.unwrap_err().to_string().contains(text));
        }
    }
}
