//! What the stand-in serves: webhooks and the aggregated API over HTTPS, the control endpoint over HTTP.

pub mod control;
pub mod tls;
pub mod webhooks;
