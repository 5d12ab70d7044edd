//! What the outcome of a request says about the way to the server, and how it is sent once more.

use http::{Request, StatusCode};
use kube::client::Body;

/// What a proxy says when there is nothing behind it.
pub(super) fn is_gateways(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT)
}

/// For who we are: nothing was done.
pub(super) fn is_refused(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

/// No connection was made, so nothing can have happened on the other side.
pub(super) fn never_arrived(error: &kube::Error) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>() {
            return error.is_connect();
        }
        next = error.source();
    }
    false
}

pub(super) fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}
