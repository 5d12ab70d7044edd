//! The cloud-provider traits for Harvester: load balancers from IP pools, by DHCP and shared; VMs behind Nodes; the
//! network mapping.
//!
//! Every rule is a pure function over small views (`plan`, `sharing.rs`, `identity/decide.rs`, `addresses.rs`, …).
//! Requests that write are sent by `host_upgrade/requests.rs`, `identity/record.rs`, `load_balancers/apply.rs` and
//! `nad_mapping/writer.rs`; Events by the crate `runtime`. Other files send requests that only read: `announcers.rs`,
//! `connection/proof.rs`, `features.rs`, `host_upgrade/signals.rs`, `identity/keeper/write.rs` (who else writes the
//! record), `identity/kubelets.rs` and `instances/requests.rs`. Watches begin in `provider/watches.rs` and
//! `host_upgrade/signals.rs`.

mod announcers;
mod config;
mod connection;
mod events;
mod features;
mod garbage;
mod host_upgrade;
mod identity;
mod instances;
mod load_balancers;
mod metrics;
mod nad_mapping;
mod provider;

pub use config::{GarbageConfig, GarbageMode, GarbagePace, OwnNode, ProviderConfig};
pub use connection::{Connection, ConnectionError};
pub use identity::decide::Source;
pub use identity::identity_card::{IdentityCard, fingerprint};
pub use identity::judge::OperatorConfirmation;
pub use identity::record::{Record, RecordError, Records};
pub use provider::{Foresight, HarvesterProvider, Unreadable};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs::{read_dir, read_to_string};
    use std::path::{Path, PathBuf};

    fn files(directory: &Path) -> Vec<PathBuf> {
        let entries = read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
    }

    /// Each request of kube that writes takes one of these parameters.
    #[test]
    fn only_the_files_that_the_first_lines_name_send_requests_that_write() {
        let parameters = ["Post", "Patch", "Delete", "Evict"].map(|verb| format!("{verb}Params::"));
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let name = |path: &Path| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        let mut writers = BTreeSet::new();
        for path in files(&root).iter().filter(|path| !name(path).contains("tests")) {
            let text = read_to_string(path).unwrap();
            if parameters.iter().any(|parameter| text.contains(parameter)) {
                writers.insert(name(path));
            }
        }
        let text = include_str!("lib.rs").replace("\n//! ", " ");
        let (_, list) = text.split_once("Requests that write are sent by ").unwrap();
        let (list, _) = list.split_once(';').unwrap();
        // What stands between backticks is every other part.
        let named: BTreeSet<String> = list.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        assert_eq!(writers, named);
    }
}
