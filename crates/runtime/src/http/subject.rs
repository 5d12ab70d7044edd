//! Reads the names in the subject of a certificate. The handshake has verified the certificate. A certificate of an
//! unexpected form yields no name.

use crate::der::{self, Elements, SEQUENCE};

/// `id-at-commonName` and `id-at-organizationName`, in DER.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ORGANISATION: &[u8] = &[0x55, 0x04, 0x0a];

const OBJECT_IDENTIFIER: u8 = 0x06;
const SET: u8 = 0x31;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;

/// The names in a certificate's subject.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Subject {
    /// The common name, if there is one.
    pub(super) name: Option<String>,
    /// Organisations.
    pub(super) groups: Vec<String>,
}

/// The subject of a certificate in DER.
pub(super) fn subject(certificate: &[u8]) -> Option<Subject> {
    let mut fields = der::fields(certificate)?;
    // Skips algorithm, issuer and validity.
    for _ in 0..3 {
        fields.next()?;
    }
    let mut names = Elements(fields.next_of(SEQUENCE)?);
    let mut subject = Subject::default();
    while !names.0.is_empty() {
        let mut set = Elements(names.next_of(SET)?);
        while !set.0.is_empty() {
            let mut attribute = Elements(set.next_of(SEQUENCE)?);
            let kind = attribute.next_of(OBJECT_IDENTIFIER)?;
            let (tag, value) = attribute.next()?;
            let text =
                || String::from_utf8(value.to_vec()).ok().filter(|_| [UTF8_STRING, PRINTABLE_STRING].contains(&tag));
            match kind {
                COMMON_NAME if subject.name.is_none() => subject.name = Some(text()?),
                ORGANISATION => subject.groups.push(text()?),
                _ => {}
            }
        }
    }
    Some(subject)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn certificate(names: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, name) in names {
            params.distinguished_name.push(kind.clone(), *name);
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn names_are_read_and_others_passed_over() {
        let all = [
            (DnType::CountryName, "DE"),
            (DnType::OrganizationName, "system:masters"),
            (DnType::CommonName, "prométheus"),
        ];
        let read = subject(&certificate(&all)).unwrap();
        assert_eq!((read.name.as_deref(), read.groups), (Some("prométheus"), vec!["system:masters".to_owned()]));
        assert_eq!(subject(&certificate(&[])), Some(Subject::default()));
    }

    #[test]
    fn what_is_cut_or_changed_names_nobody_and_breaks_nothing() {
        let whole = certificate(&[(DnType::CommonName, "web")]);
        for end in 0..whole.len() {
            assert_eq!(subject(&whole[..end]), None, "{end} bytes");
        }
        for (index, byte) in (0..whole.len()).flat_map(|index| [0x00, 0x30, 0x80, 0x84, 0xff].map(|byte| (index, byte)))
        {
            let mut changed = whole.clone();
            changed[index] = byte;
            let _ = subject(&changed);
        }
    }
}
