//! The workload: HTTP and UDP on a port, answering who answers and whom it sees.
//!
//! Every answer is one line: `pod=web-1 node=node2 client=192.168.100.50`, for UDP with ` data=` and what was sent.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};

/// Who answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// Name of the pod.
    pub pod: String,
    /// Name of the node, `?` if unknown.
    pub node: String,
}

impl Who {
    fn line(&self, client: IpAddr) -> String {
        format!("pod={} node={} client={}", self.pod, self.node, client.to_canonical())
    }
}

/// The value of `key` in an answer, `node` for example.
pub fn field<'a>(answer: &'a str, key: &str) -> Option<&'a str> {
    answer.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// Listens on all addresses of both families, TCP and UDP, and answers for ever. Ends only if it cannot listen.
pub async fn serve(who: Who, ports: &[u16]) -> io::Result<()> {
    let mut sockets = Vec::new();
    for port in ports {
        let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, *port));
        let socket = TcpSocket::new_v6()?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        // Sixteen seconds of a prober's retries may arrive at once when a VIP comes back.
        sockets.push((socket.listen(1024)?, UdpSocket::bind(address).await?));
    }
    let all = sockets.into_iter().map(|(tcp, udp)| {
        let who = who.clone();
        async move { tokio::join!(serve_http(&who, tcp), serve_udp(&who, udp)) }
    });
    futures::future::join_all(all).await;
    Ok(())
}

async fn serve_http(who: &Who, listener: TcpListener) {
    loop {
        // Out of file descriptors or the client gave up: neither is a reason to stop serving others.
        let Ok((stream, client)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let line = who.line(client.ip());
        tokio::spawn(async move {
            let _ = tokio::time::timeout(Duration::from_mins(5), answer_http(stream, &line)).await;
        });
    }
}

/// Answers one request after another on a connection, whatever the path.
pub(crate) async fn answer_http(mut stream: TcpStream, line: &str) -> io::Result<()> {
    let mut head = Vec::new();
    let mut chunk = [0; 2048];
    loop {
        while let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            let request = String::from_utf8_lossy(&head[..end]).to_ascii_lowercase();
            let close = request.contains("\r\nconnection: close")
                || request.lines().next().is_some_and(|first| first.ends_with("http/1.0"));
            let connection = if close { "close" } else { "keep-alive" };
            let body = format!("{line}\n");
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: \
                {connection}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await?;
            head.drain(..end + 4);
            if close {
                return stream.shutdown().await;
            }
        }
        let n = stream.read(&mut chunk).await?;
        if n == 0 || head.len() > 16_384 {
            return Ok(());
        }
        head.extend_from_slice(&chunk[..n]);
    }
}

async fn serve_udp(who: &Who, socket: UdpSocket) {
    let mut data = vec![0; 65_536];
    loop {
        // An ICMP error for an earlier answer shows up here; the next datagram is fine.
        let Ok((n, client)) = socket.recv_from(&mut data).await else { continue };
        let mut answer = format!("{} data=", who.line(client.ip())).into_bytes();
        answer.extend_from_slice(&data[..n]);
        let _ = socket.send_to(&answer, client).await;
    }
}

/// One HTTP GET of `/`; the body.
pub async fn get(target: SocketAddr, timeout: Duration) -> Result<String> {
    get_path(target, "/", timeout).await
}

/// One HTTP GET; the body.
pub async fn get_path(target: SocketAddr, path: &str, timeout: Duration) -> Result<String> {
    let exchange = async {
        let stream = TcpStream::connect(target).await.with_context(|| format!("failed to connect to {target}"))?;
        get_over(stream, target, path).await
    };
    tokio::time::timeout(timeout, exchange)
        .await
        .with_context(|| format!("{target} did not answer within {timeout:?}"))?
}

/// One HTTP GET over a connection to `target`; the body.
pub(crate) async fn get_over(mut stream: TcpStream, target: SocketAddr, path: &str) -> Result<String> {
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n").as_bytes())
        .await
        .with_context(|| format!("failed to send a request to {target}"))?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.with_context(|| format!("failed to read the answer of {target}"))?;
    let answer = String::from_utf8_lossy(&answer);
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.split(' ').nth(1) == Some("200") => Ok(body.trim_end().to_owned()),
        _ => bail!("{target} answered {:?}", answer.lines().next().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn http_and_udp_tell_who_answers_and_whom_they_see() {
        let who = Who { pod: "web-1".into(), node: "node2".into() };
        let probe = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        tokio::spawn(async move { serve(who, &[free.port()]).await });
        let answer = loop {
            if let Ok(answer) = get(free, Duration::from_secs(5)).await {
                break answer;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(answer, "pod=web-1 node=node2 client=127.0.0.1");
        assert_eq!(field(&answer, "node"), Some("node2"));
        assert_eq!(field(&answer, "nod"), None);

        probe.send_to(b"17", free).await.unwrap();
        let mut data = [0; 200];
        let n = probe.recv(&mut data).await.unwrap();
        assert_eq!(&data[..n], b"pod=web-1 node=node2 client=127.0.0.1 data=17");
    }
}
