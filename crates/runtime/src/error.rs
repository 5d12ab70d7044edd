//! Formats an error and its causes as one line for a log, an Event or a refusal.

use std::error::Error;

use kube::runtime::watcher;

/// `error` and its causes, joined by `: `. Of a Kubernetes Status only the message is shown, because the debug form
/// that `kube` adds is noise for the reader of an Event. A cause whose text is already in that of its parent is not
/// repeated.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let (line, stop) = line(error);
        if !text.ends_with(&line) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&line);
        }
        next = if stop { None } else { error.source() };
    }
    text
}

fn line(error: &(dyn Error + 'static)) -> (String, bool) {
    // The texts of these errors contain the cause with its debug form.
    match error.downcast_ref::<watcher::Error>() {
        Some(watcher::Error::InitialListFailed(cause)) => return (format!("failed to list: {}", chain(cause)), true),
        Some(watcher::Error::WatchStartFailed(cause)) => {
            return (format!("failed to start the watch: {}", chain(cause)), true);
        }
        Some(watcher::Error::WatchFailed(cause)) => return (format!("the watch broke: {}", chain(cause)), true),
        Some(watcher::Error::WatchError(status)) if !status.message.is_empty() => {
            return (format!("the watch was ended: {}", status.message), true);
        }
        _ => {}
    }
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) if !status.message.is_empty() => (status.message.clone(), true),
        // Wrappers without information of their own.
        Some(kube::Error::Service(cause)) => (chain(cause.as_ref()), true),
        Some(kube::Error::HyperError(cause)) => (chain(cause), true),
        _ => (error.to_string(), false),
    }
}

/// The first answer of a Kubernetes API server in the chain of causes.
fn api_status<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a kube::core::Status> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(kube::Error::Api(status)) = error.downcast_ref::<kube::Error>() {
            return Some(status);
        }
        next = error.source();
    }
    None
}

/// The HTTP status of the first answer of an API server in the chain of causes.
pub fn api_code(error: &(dyn Error + 'static)) -> Option<u16> {
    api_status(error).map(|status| status.code)
}

/// Whether the answer rejects the credentials (401) or the rights (403) of whoever asks, so that nothing was done.
pub fn is_denied(code: u16) -> bool {
    matches!(code, 401 | 403)
}

/// Whether an API server refuses this very write, now and by any other of its servers: a right is missing, the object
/// is not valid or too large, or an admission rule denies it, for which a webhook chooses the code. An API server that
/// has just started refuses with 403, too ([`crate::refusal::settled`]).
pub fn is_refused_write(error: &(dyn Error + 'static)) -> bool {
    matches!(api_code(error), Some(400 | 403 | 413 | 422))
}

/// Advice to append to the error of a list request. A 404 means that the URL is not that of an API server, or has a
/// wrong path.
pub fn nothing_there(error: &kube::Error) -> &'static str {
    if api_code(error) == Some(404) {
        ": there is no Kubernetes API under this URL; look at the server of the kubeconfig, its path above all \
         (https://HOST:6443, behind Rancher https://HOST/k8s/clusters/ID)"
    } else {
        ""
    }
}

/// Whether an API server answers that this object does not exist. A 404 without this reason may come from a proxy, or
/// from an API server that does not know the kind.
pub fn is_absent(error: &(dyn Error + 'static)) -> bool {
    api_status(error).is_some_and(|status| status.code == 404 && status.reason == "NotFound")
}

/// Whether another program wrote the object after it was read, so that it has to be read again. ("Already exists" is
/// also 409, but does not count.)
pub fn is_conflict(error: &(dyn Error + 'static)) -> bool {
    api_status(error).is_some_and(kube::core::Status::is_conflict)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("failed to create LoadBalancer {name}")]
    struct Failed {
        name: &'static str,
        source: kube::Error,
    }

    fn refused() -> Failed {
        let status =
            kube::core::Status::failure("admission webhook denied the request: no pool", "Invalid").with_code(422);
        Failed { name: "guests/a", source: kube::Error::Api(status.boxed()) }
    }

    /// W-40.
    #[test]
    fn the_cause_follows_what_was_tried_and_status_details_are_left_out() {
        assert_eq!(
            chain(&refused()),
            "failed to create LoadBalancer guests/a: admission webhook denied the request: no pool"
        );
    }

    #[test]
    fn only_an_answer_that_nothing_is_there_blames_the_url() {
        let said = |code: u16| {
            nothing_there(&kube::Error::Api(kube::core::Status::failure("no", "Reason").with_code(code).boxed()))
        };
        assert!(said(404).contains("the server of the kubeconfig"));
        assert_eq!((said(403), said(500)), ("", ""));
    }

    #[test]
    fn a_watch_that_fails_says_why_without_the_details_of_the_status() {
        let Failed { source, .. } = refused();
        let error = watcher::Error::InitialListFailed(source);
        assert_eq!(chain(&error), "failed to list: admission webhook denied the request: no pool");
    }

    #[test]
    fn a_refusal_of_a_write_is_told_from_a_server_that_is_away_and_from_one_that_wants_other_credentials() {
        let said = |code: u16| kube::Error::Api(kube::core::Status::failure("no", "Reason").with_code(code).boxed());
        for (code, denied, refused) in [
            (400, false, true),
            (401, true, false),
            (403, true, true),
            (404, false, false),
            (409, false, false),
            (413, false, true),
            (422, false, true),
            (429, false, false),
            (500, false, false),
            (503, false, false),
        ] {
            assert_eq!((is_denied(code), is_refused_write(&said(code))), (denied, refused), "{code}");
        }
        assert!(!is_refused_write(&std::io::Error::other("x")));
    }

    #[test]
    fn the_code_of_the_answer_is_found_behind_our_own_error() {
        assert_eq!(api_code(&refused()), Some(422));
        assert!(!is_conflict(&refused()));
        assert_eq!(api_code(&std::io::Error::other("x")), None);
    }

    #[test]
    fn only_the_api_servers_own_answer_says_that_an_object_does_not_exist() {
        let said = |code: u16, reason: &str| {
            kube::Error::Api(kube::core::Status::failure("x", reason).with_code(code).boxed())
        };
        for (code, reason, absent) in [
            (404, "NotFound", true),
            (404, "", false),
            (404, "Failed to parse error data", false),
            (410, "Gone", false),
            (503, "NotFound", false),
        ] {
            assert_eq!(is_absent(&said(code, reason)), absent, "{code} {reason}");
        }
        assert!(is_absent(&Failed { name: "web", source: said(404, "NotFound") }));
        assert!(!is_absent(&std::io::Error::other("x")));
    }
}
