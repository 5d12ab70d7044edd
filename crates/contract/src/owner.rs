//! The owner of a Service's address, as recorded on the Service (decisions.md 20).

use std::collections::BTreeMap;

use crate::Term;
use crate::keys::cloudprovider::TERM;
use crate::keys::kube_vip::VIP_HOST;

/// The record of ownership on a Service: `kube-vip.io/vipHost` and the term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerRecord {
    /// The node that announces.
    pub host: String,
    /// The term, which counts the changes of owner.
    pub term: Term,
}

impl OwnerRecord {
    /// Reads the annotations of a Service. kube-vip writes no term; then there is no record.
    pub fn read(annotations: &BTreeMap<String, String>) -> Option<Self> {
        let term = Term::parse(annotations.get(TERM)?)?;
        Some(Self { host: annotations.get(VIP_HOST)?.clone(), term })
    }

    /// Writes the record to the annotations of a Service.
    pub fn write(&self, annotations: &mut BTreeMap<String, String>) {
        annotations.insert(VIP_HOST.to_owned(), self.host.clone());
        annotations.insert(TERM.to_owned(), self.term.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_half_a_record_is_none() {
        let record = OwnerRecord { host: "node-1".into(), term: Term(7) };
        let mut annotations = BTreeMap::new();
        record.write(&mut annotations);
        assert_eq!(OwnerRecord::read(&annotations), Some(record));
        for key in [TERM, VIP_HOST] {
            let mut half = annotations.clone();
            half.remove(key);
            assert_eq!(OwnerRecord::read(&half), None, "without {key}");
        }
    }
}
