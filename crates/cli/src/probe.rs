//! `probe URL...`: asks until every URL has answered 200. The image holds no other program that the chart's test
//! could run.

use std::borrow::Cow;
use std::net::Ipv6Addr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use kube::Config;
use runtime::client::{Settings, connect};
use runtime::error::chain;
use tokio::time::{Instant, sleep};

use crate::PRODUCT;
use crate::stdout::{self, say};

/// A workload that is being replaced is ready again by then.
const PATIENCE: Duration = Duration::from_secs(20);
/// As everywhere for a command line that cannot be read.
const WRONG_USAGE: u8 = 2;
const PERIOD: Duration = Duration::from_millis(500);

const HELP: &str = "\
Asks each URL until it answers 200, up to 20 s. Certificates are not checked: the ones served here are made at \
each start.

Usage: harvester-cloud-provider probe URL...

Example:
  harvester-cloud-provider probe https://127.0.0.1:10258/readyz http://127.0.0.1:2112/readyz

Exit status: 0 if all answered, 1 if one did not, 2 on wrong usage.";

/// Runs the command; `urls` are the arguments after its name.
pub fn main(urls: &[String]) -> ExitCode {
    if urls.is_empty() || urls.iter().any(|url| url == "--help" || url == "-h") {
        let said = say(HELP);
        return if urls.is_empty() { ExitCode::from(WRONG_USAGE) } else { said };
    }
    if let Some(error) = urls.iter().find_map(|url| parsed(url).err()) {
        eprintln!("{error}");
        return ExitCode::from(WRONG_USAGE);
    }
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")
        .and_then(|runtime| runtime.block_on(all(urls)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

async fn all(urls: &[String]) -> anyhow::Result<()> {
    for url in urls {
        let deadline = Instant::now() + PATIENCE;
        let mut last_said = String::new();
        while let Err(error) = once(url).await {
            let why = chain(error.as_ref());
            let over = Instant::now() >= deadline;
            // The last one is told at the end.
            if why != last_said && !over {
                eprintln!("{why}");
                last_said = why;
            }
            if over {
                if let Some(hint) = where_to_look(url) {
                    eprintln!("{hint}");
                }
                return Err(error);
            }
            sleep(PERIOD).await;
        }
        stdout::print(&format!("{url} answers\n"))?;
    }
    Ok(())
}

/// The chart says behind `#` what stands behind the URL: a refused connection alone tells nobody that no pod runs
/// there.
fn where_to_look(url: &str) -> Option<String> {
    let (_, objects) = url.split_once('#')?;
    let objects = objects.replace(',', " ");
    Some(format!(
        "where a connection is refused or not answered, no pod is ready behind the Service; look at: kubectl get \
         {objects} -o wide, and kubectl describe {objects}, in the namespace of the release"
    ))
}

/// The chart has the host from the environment of its pod, where an IPv6 address stands without the brackets that a
/// URL needs.
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
    // The client puts the path of its base URL before that of each request, so the base must not have one.
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

    #[tokio::test]
    async fn what_is_no_url_is_named() {
        for text in ["https://$(HOST)/readyz", "readyz", "127.0.0.1"] {
            assert!(once(text).await.unwrap_err().to_string().contains(text));
        }
    }
}
