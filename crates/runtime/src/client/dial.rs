//! Opens connections: to the usual address, and where that leads to a lost API server, to others of the list
//! ([`Servers`]). A request whose server has fallen silent is sent once more, to another one.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Method, Request, Uri};
use hyper_util::client::legacy;
use kube::client::Body;
use tokio::time::timeout;
use tower::{BoxError, Layer, Service};

use super::outcome::copy;
use super::servers::Servers;

/// A connector. `C` opens a connection to the host in a URI.
#[derive(Debug, Clone)]
pub(super) struct Dial<C> {
    /// For the usual address.
    pub usual: C,
    /// With the limits that hold where other servers are known: for the usual address and for a server of the list.
    pub near: Option<(C, Servers)>,
}

/// Limit for one server of the list, its TLS handshake included.
const LONGEST_ATTEMPT: Duration = Duration::from_millis(1500);
/// Limit of repetitions: idle connections to a lost server may be left, and each repetition ends one.
const MOST_REPEATS: usize = 3;

/// One attempt. It has failed unless it is told otherwise, also if it is given up because it takes too long.
struct Attempt<'a> {
    servers: &'a Servers,
    server: SocketAddr,
    serves: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.serves {
            self.servers.serves(self.server);
        } else {
            self.servers.failed(self.server);
        }
    }
}

impl<C> Service<Uri> for Dial<C>
where
    C: Service<Uri, Error = BoxError> + Clone + Send + 'static,
    C::Response: Send,
    C::Future: Send,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<C::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.usual.poll_ready(context)
    }

    fn call(&mut self, usual: Uri) -> Self::Future {
        let Self { usual: mut last, near } = self.clone();
        Box::pin(async move {
            let Some((mut connector, servers)) = near else { return last.call(usual).await };
            if servers.candidates().is_empty() {
                let connection = last.call(usual).await?;
                servers.opened();
                return Ok(connection);
            }
            if !servers.is_direct() {
                match connector.call(usual.clone()).await {
                    Ok(connection) => {
                        servers.opened();
                        return Ok(connection);
                    }
                    Err(error) => {
                        tracing::debug!(error, "the usual address leads to no API server; others are tried");
                        servers.lost();
                    }
                }
            }
            for server in servers.candidates() {
                let mut attempt = Attempt { servers: &servers, server, serves: false };
                match timeout(LONGEST_ATTEMPT, connector.call(towards(&usual, server))).await {
                    Ok(Ok(connection)) => {
                        attempt.serves = true;
                        return Ok(connection);
                    }
                    Ok(Err(error)) => {
                        tracing::debug!(%server, error, "the API server cannot be reached; another one is tried");
                    }
                    Err(_) => tracing::debug!(%server, "the API server is silent; another one is tried"),
                }
            }
            last.call(usual).await
        })
    }
}

/// The URI with another host. The name in the server's certificate is set in the connector.
fn towards(usual: &Uri, server: SocketAddr) -> Uri {
    let scheme = usual.scheme_str().unwrap_or("https");
    Uri::builder().scheme(scheme).authority(server.to_string()).path_and_query("/").build().unwrap_or(usual.clone())
}

/// Sends a request again if its server has fallen silent. Only what does no harm twice: a read, or a write of a
/// state. Of a write whose `resourceVersion` has changed the second one is refused as a conflict.
#[derive(Debug, Clone)]
pub(super) struct RepeatLayer(pub Servers);

impl<S> Layer<S> for RepeatLayer {
    type Service = Repeat<S>;

    fn layer(&self, inner: S) -> Repeat<S> {
        Repeat { inner, servers: self.0.clone() }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Repeat<S> {
    inner: S,
    servers: Servers,
}

impl<S> Service<Request<Body>> for Repeat<S>
where
    S: Service<Request<Body>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let again = matches!(*request.method(), Method::GET | Method::PUT | Method::PATCH).then(|| copy(&request));
        let first = self.inner.call(request);
        let Self { mut inner, servers } = self.clone();
        Box::pin(async move {
            let (mut answer, mut again) = (first.await, again.flatten());
            for _ in 0..MOST_REPEATS {
                let Err(error) = &answer else { break };
                if !fell_silent(&**error) {
                    break;
                }
                servers.lost();
                let Some(next) = again.take() else { break };
                tracing::debug!(error, path = next.uri().path(), "the API server is silent; another one is asked");
                again = copy(&next);
                answer = inner.call(next).await;
            }
            answer
        })
    }
}

/// Whether the kernel gave the connection up because its peer acknowledged nothing any more.
fn fell_silent(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.downcast_ref().is_some_and(legacy::Error::is_connect) {
            return false;
        }
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable)) {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
#[path = "dial_tests.rs"]
mod tests;
