//! Opens connections: to the API servers one after the other, where they are known ([`Servers`]), and at last to the
//! usual address. A request whose server has fallen silent is sent once more, to another one.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Method, Request, Uri};
use hyper_util::client::legacy;
use kube::client::Body;
use tower::{BoxError, Layer, Service};

use super::outcome::copy;
use super::servers::Servers;

/// A connector. `C` opens a connection to the host in a URI.
#[derive(Debug, Clone)]
pub(super) struct Dial<C> {
    /// For the usual address.
    pub usual: C,
    /// For an API server of the list.
    pub near: Option<(C, Servers)>,
}

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
            for server in servers.ways() {
                let mut attempt = Attempt { servers: &servers, server, serves: false };
                match connector.call(towards(&usual, server)).await {
                    Ok(connection) => {
                        attempt.serves = true;
                        return Ok(connection);
                    }
                    Err(error) => {
                        tracing::debug!(%server, error, "the API server cannot be reached; the next one is tried");
                    }
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

/// Sends a request once more if its server has fallen silent. Only what does no harm twice: a read, or a write of a
/// state. Of a write whose `resourceVersion` has changed the second one is refused as a conflict.
#[derive(Debug, Clone, Copy)]
pub(super) struct AgainLayer;

impl<S> Layer<S> for AgainLayer {
    type Service = Again<S>;

    fn layer(&self, inner: S) -> Again<S> {
        Again { inner }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Again<S> {
    inner: S,
}

impl<S> Service<Request<Body>> for Again<S>
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
        let answer = self.inner.call(request);
        let mut inner = self.inner.clone();
        Box::pin(async move {
            match (answer.await, again.flatten()) {
                (Err(error), Some(again)) if fell_silent(&*error) => {
                    tracing::debug!(error, path = again.uri().path(), "the API server is silent; another one is asked");
                    inner.call(again).await
                }
                (answer, _) => answer,
            }
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
