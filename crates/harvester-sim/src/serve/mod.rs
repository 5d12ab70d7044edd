//! What the stand-in serves: webhooks, the aggregated API and the host's API with its faults over HTTPS, the control
//! endpoint over HTTP.

pub mod api;
pub mod control;
pub mod tls;
mod watches;
pub mod webhooks;
