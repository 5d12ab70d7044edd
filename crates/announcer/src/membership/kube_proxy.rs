//! Checks kube-proxy on this node: without it a node accepts clients' packets and drops them (decisions.md 21).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use announcer_core::engine::Input;
use runtime::cache::Cache;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::NodeView;

/// Addresses of kube-proxy's health check; in an IPv6-only cluster it may listen on IPv6 alone.
const ADDRESSES: [SocketAddr; 2] =
    [SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10256), SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 10256)];
const EVERY: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(2);
/// Consecutive bad answers before kube-proxy counts as unhealthy: one that is being replaced is back in a moment.
const PATIENCE: u32 = 4;
/// If nothing listens (another proxy or a CNI does its work), a Node that was not ready when this process began has to
/// be ready for this long.
const READY_FOR: Duration = Duration::from_secs(10);

/// Answer of the health check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    Bad,
    /// Nothing listens.
    Absent,
}

/// Tells the engine whether kube-proxy is healthy, at each change.
pub async fn watch(node: String, nodes: Cache<String, NodeView>, inputs: mpsc::UnboundedSender<Input>) {
    let mut judge = Judge::default();
    let mut told = None;
    loop {
        let health = ask_all(&ADDRESSES).await;
        let ready = nodes.get(&node).map(|view| view.facts.ready);
        if let Some(serving) = judge.judge(Instant::now(), health, ready)
            && told.replace(serving) != Some(serving)
        {
            tracing::info!(?health, serving, "the announcer asked kube-proxy on this node for its health");
            let _ = inputs.send(Input::KubeProxy(serving));
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Judges the answers.
#[derive(Debug, Default)]
struct Judge {
    bad: u32,
    listened: bool,
    /// The verdict; `None`: there is none yet.
    serving: Option<bool>,
    /// The node has served while nothing listened.
    settled: bool,
    /// When the Node was last seen not to be ready, until then.
    unready: Option<Instant>,
}

impl Judge {
    /// Whether kube-proxy counts as healthy; `None`: there were only a few bad answers since this process began. It may
    /// have been replaced together with this process, and a verdict would move all addresses. `ready`: state of the
    /// Node; `None`: unknown. Durations are measured here, because the Node's timestamps come from another clock.
    fn judge(&mut self, now: Instant, health: Health, ready: Option<bool>) -> Option<bool> {
        if ready == Some(false) && !self.settled {
            self.unready = Some(now);
        }
        self.serving = match health {
            Health::Good => {
                self.bad = 0;
                self.listened = true;
                Some(true)
            }
            // A kube-proxy that listened a moment ago is being replaced or has died.
            // A node that starts may be unable to serve until it has been ready for a while. Later `Readiness` judges
            // how ready it is: it has patience, and many Nodes that are not ready together do not count.
            Health::Absent if !self.listened => {
                let well = self.unready.is_none_or(|unready| now >= unready + READY_FOR);
                self.settled |= well && ready == Some(true);
                self.bad = 0;
                Some(well)
            }
            Health::Bad | Health::Absent => {
                self.bad = self.bad.saturating_add(1);
                if self.bad < PATIENCE { self.serving } else { Some(false) }
            }
        };
        self.serving
    }
}

/// The answer of the first address where a server listens.
async fn ask_all(addresses: &[SocketAddr]) -> Health {
    for address in addresses {
        let health = ask(*address).await;
        if health != Health::Absent {
            return health;
        }
    }
    Health::Absent
}

async fn ask(address: SocketAddr) -> Health {
    let exchange = async {
        // Refused, or a kernel without IPv6: no server listens in either case.
        let Ok(mut stream) = TcpStream::connect(address).await else { return Ok(Health::Absent) };
        stream.write_all(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n").await?;
        let mut answer = [0; 15];
        stream.read_exact(&mut answer).await?;
        let good = answer.starts_with(b"HTTP/1") && &answer[9..12] == b"200";
        Ok::<_, std::io::Error>(if good { Health::Good } else { Health::Bad })
    };
    match tokio::time::timeout(LIMIT, exchange).await {
        Ok(Ok(health)) => health,
        Ok(Err(_)) | Err(_) => Health::Bad,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kube_proxy_that_is_being_replaced_costs_nothing_and_one_that_stays_away_does() {
        let (mut judge, now) = (Judge::default(), Instant::now());
        assert_eq!(judge.judge(now, Health::Good, None), Some(true));
        for health in [Health::Absent, Health::Absent, Health::Bad] {
            assert_eq!(judge.judge(now, health, Some(true)), Some(true));
        }
        assert_eq!(judge.judge(now, Health::Absent, Some(true)), Some(false));
        assert_eq!(judge.judge(now, Health::Good, None), Some(true));
    }

    /// An upgrade may have replaced it together with the announcer, whose node has addresses.
    #[test]
    fn bad_answers_to_a_process_that_has_just_begun_are_a_verdict_only_when_there_are_four() {
        let now = Instant::now();
        let bad = |judge: &mut Judge| judge.judge(now, Health::Bad, Some(true));
        let mut judge = Judge::default();
        let answers: Vec<Option<bool>> = (0..6).map(|_| bad(&mut judge)).collect();
        assert_eq!(answers, [None, None, None, Some(false), Some(false), Some(false)]);
        for health in [Health::Good, Health::Absent] {
            let mut judge = Judge::default();
            assert_eq!((bad(&mut judge), bad(&mut judge)), (None, None));
            assert_eq!(judge.judge(now, health, Some(true)), Some(true), "{health:?}");
            assert_eq!((bad(&mut judge), bad(&mut judge)), (Some(true), Some(true)), "they are counted anew");
        }
    }

    #[test]
    fn where_nobody_listens_a_node_that_was_ready_serves_until_others_judge() {
        let (mut judge, start) = (Judge::default(), Instant::now());
        let mut absent = |seconds, ready| {
            let verdict = judge.judge(start + Duration::from_secs(seconds), Health::Absent, ready);
            verdict.expect("there is a verdict at once")
        };
        assert!(absent(0, None), "Nodes may not be read");
        assert!(absent(2, Some(true)), "ready since before this process, by whatever clock");
        assert!(absent(4, Some(false)), "later it is for those to judge who know all Nodes");
    }

    #[test]
    fn where_nobody_listens_a_node_that_starts_has_to_be_ready_for_a_while() {
        let (mut judge, start) = (Judge::default(), Instant::now());
        let mut absent = |seconds, ready| {
            let verdict = judge.judge(start + Duration::from_secs(seconds), Health::Absent, ready);
            verdict.expect("there is a verdict at once")
        };
        assert!(!absent(0, Some(false)) && !absent(9, Some(true)), "it has just become ready");
        assert!(!absent(12, Some(false)) && !absent(21, Some(true)), "and again");
        assert!(absent(22, Some(true)) && absent(40, Some(false)), "once it has served");
    }

    #[tokio::test]
    async fn it_is_asked_as_kubelet_does() {
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\n\r\n", Health::Good),
            ("HTTP/1.1 503 Service Unavailable\r\n\r\n", Health::Bad),
            ("", Health::Bad),
        ] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let server = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 20];
                stream.read_exact(&mut request).await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
            });
            assert_eq!(ask(address).await, expected, "{answer:?}");
            server.await.unwrap();
            assert_eq!(ask(address).await, Health::Absent);
        }
    }

    async fn listener(address: &str, answer: &'static str) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 20];
                stream.read_exact(&mut request).await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        address
    }

    #[tokio::test]
    async fn it_is_absent_only_where_nobody_listens_on_either_family() {
        assert!(ADDRESSES.iter().any(SocketAddr::is_ipv6) && ADDRESSES.iter().any(SocketAddr::is_ipv4));
        let well = listener("127.0.0.1:0", "HTTP/1.1 200 OK\r\n\r\n").await;
        let ill = listener("127.0.0.1:0", "HTTP/1.1 503 Service Unavailable\r\n\r\n").await;
        let refused: SocketAddr = "127.0.0.1:1".parse().unwrap();
        // As `::1` is where the kernel has no IPv6.
        let unreachable: SocketAddr = "255.255.255.255:1".parse().unwrap();
        for (name, addresses, expected) in [
            ("only IPv6", [refused, well], Health::Good),
            ("only IPv4", [well, unreachable], Health::Good),
            ("only IPv6, and ill", [refused, ill], Health::Bad),
            ("only IPv4, and ill", [ill, refused], Health::Bad),
            ("neither", [refused, refused], Health::Absent),
            ("neither, and no IPv6", [refused, unreachable], Health::Absent),
        ] {
            assert_eq!(ask_all(&addresses).await, expected, "{name}");
        }
    }
}
