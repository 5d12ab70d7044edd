//! Warns about certificates before they expire.

use announcer_core::status::table::age;

use super::advice;
use super::checks::Check;
use super::finding::{Finding, Severity};
use crate::snapshot::{Certificate, Owner, Side, Snapshot};

const DAY: i64 = 24 * 60 * 60;
/// Time before the expiry at which it is reported. RKE2 and K3s renew certificates at a start within the last 90 days
/// or more, kubeadm at each upgrade.
const SOON: i64 = 30 * DAY;

pub fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let of = |guest, side: &Side| -> Vec<Finding> {
        side.certificates.iter().filter_map(|one| finding(snapshot, guest, side, one)).collect()
    };
    [of(true, &snapshot.guest), of(false, &snapshot.harvester)].concat()
}

/// Whether the certificate of this API has expired, which explains why it is not trusted.
pub fn served_has_expired(snapshot: &Snapshot, side: &Side) -> bool {
    side.certificates.iter().any(|one| one.owner == Owner::Server && left(snapshot, one) <= 0)
}

fn left(snapshot: &Snapshot, certificate: &Certificate) -> i64 {
    certificate.expires.as_second() - snapshot.now.as_second()
}

fn finding(snapshot: &Snapshot, guest: bool, side: &Side, certificate: &Certificate) -> Option<Finding> {
    let left = left(snapshot, certificate);
    let severity = match left {
        ..=0 => Severity::Error,
        1..SOON => Severity::Warning,
        _ => return None,
    };
    let api = if guest { "guest API" } else { "Harvester API" };
    let (object, why) = match certificate.owner {
        Owner::Server => (format!("certificate of the {api} {}", side.server), "no client trusts the server then"),
        Owner::Credentials if guest => ("client certificate in the kubeconfig".to_owned(), "the API refuses it then"),
        Owner::Credentials => (
            format!("client certificate in the cloud-config ({})", snapshot.cloud_config),
            "the cloud controller cannot use Harvester then: no new load balancer gets an address",
        ),
    };
    let what =
        if left <= 0 { format!("it ran out {} ago", age(-left)) } else { format!("it runs out in {}", age(left)) };
    let finding = match severity {
        Severity::Error => Finding::error(Check::CertificateExpired, object),
        Severity::Warning => Finding::warning(Check::CertificateExpires, object),
    };
    Some(finding.what(format!("{what}, at {}", certificate.expires)).why(why).remedy(remedy(
        snapshot,
        guest,
        certificate.owner,
    )))
}

fn remedy(snapshot: &Snapshot, guest: bool, owner: Owner) -> String {
    let text = match (guest, owner) {
        (true, Owner::Server) => {
            "systemctl restart rke2-server     # on each server, one after the other; K3s: k3s; kubeadm: kubeadm certs \
             renew apiserver"
        }
        (true, Owner::Credentials) => {
            "cp /etc/rancher/rke2/rke2.yaml ~/.kube/config     # on a server, after a restart of rke2-server; or \
             download a kubeconfig from Rancher"
        }
        (false, Owner::Server) => {
            "systemctl restart rke2-server     # on each management node of Harvester, one after the other; a \
             certificate of your own: setting ssl-certificates of Harvester"
        }
        (false, Owner::Credentials) => {
            let note = "its credentials are a token, which does not run out";
            return advice::write_credentials(snapshot, &snapshot.namespace, "", note);
        }
    };
    text.to_owned()
}
