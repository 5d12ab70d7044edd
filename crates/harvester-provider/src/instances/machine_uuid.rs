//! The UUID that a machine has from its firmware. KubeVirt gives it to the guest (`spec.domain.firmware.uuid`), and the
//! kubelet writes it to its Node (`status.nodeInfo.systemUUID`). So it tells on which machine a kubelet has started,
//! also where the provider ID of its Node names another one. Pure.

use std::collections::HashMap;
use std::fmt;

use cloud_provider::view::NodeView;
use uuid::Uuid;

/// Such a UUID. Two are equal also where one has the bytes of its first three fields in reverse order: SMBIOS stores
/// them so, and not every reader puts them right.
#[derive(Debug, Clone, Copy, Eq)]
pub struct MachineUuid(Uuid);

impl MachineUuid {
    /// Parses a UUID; `None` if it is none, or has only one and the same digit, which means "not set".
    pub fn parse(text: &str) -> Option<Self> {
        let uuid = Uuid::try_parse(text.trim()).ok()?;
        let digits = uuid.simple().to_string();
        let is_set = digits.chars().any(|digit| !digits.starts_with(digit));
        is_set.then_some(Self(uuid))
    }

    /// The same in either order of bytes.
    fn canonical(self) -> [u8; 16] {
        self.0.into_bytes().min(self.0.to_bytes_le())
    }
}

impl PartialEq for MachineUuid {
    fn eq(&self, other: &Self) -> bool {
        self.canonical() == other.canonical()
    }
}

impl fmt::Display for MachineUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// The UUIDs that kubelets report, by the name of their Node. One that several Nodes report tells no machine from
/// another and is left out.
pub fn system_uuids<'a>(nodes: impl Iterator<Item = &'a NodeView>) -> HashMap<&'a str, MachineUuid> {
    let reported =
        nodes.filter_map(|node| Some((node.name.as_str(), MachineUuid::parse(node.system_uuid.as_deref()?)?)));
    let mut by_uuid: HashMap<[u8; 16], (&str, MachineUuid, usize)> = HashMap::new();
    for (node, uuid) in reported {
        by_uuid.entry(uuid.canonical()).or_insert((node, uuid, 0)).2 += 1;
    }
    by_uuid.into_values().filter(|(.., nodes)| *nodes == 1).map(|(node, uuid, _)| (node, uuid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_balancers::build;

    const UUID: &str = "00112233-4455-6677-8899-aabbccddeeff";

    #[test]
    fn upper_case_missing_hyphens_and_reversed_fields_are_the_same_uuid_and_nothing_else_is() {
        let parsed = MachineUuid::parse(UUID).unwrap();
        assert_eq!(parsed.to_string(), UUID);
        for (text, same) in [
            (UUID, true),
            ("00112233-4455-6677-8899-AABBCCDDEEFF", true),
            (" 00112233445566778899aabbccddeeff\n", true),
            ("33221100-5544-7766-8899-aabbccddeeff", true),
            ("33221100-4455-6677-8899-aabbccddeeff", false),
            ("33221100-5544-7766-9988-aabbccddeeff", false),
            ("00112233-4455-6677-8899-aabbccddeefe", false),
        ] {
            assert_eq!(MachineUuid::parse(text).unwrap() == parsed, same, "{text}");
        }
        let unset = ["", "x", "Not Settable", "00000000-0000-0000-0000-000000000000", &"f".repeat(32), &UUID[..35]];
        for text in unset {
            assert_eq!(MachineUuid::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_uuid_that_several_nodes_report_is_none() {
        let of = |name: &str, uuid: &str| NodeView { system_uuid: Some(uuid.into()), ..build::node(name, &[]) };
        let swapped = "33221100-5544-7766-8899-AABBCCDDEEFF";
        let nodes = [of("a", UUID), of("b", swapped), of("c", &UUID.replace('0', "1")), build::node("d", &[])];
        let found = system_uuids(nodes.iter());
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), ["c"]);
    }
}
