//! Reads the subject of a certificate: a parser for only the part of X.509 (RFC 5280, 4.1) that is needed for names.
//! The handshake has verified the certificate. A certificate of an unexpected form yields no name.

/// `id-at-commonName` and `id-at-organizationName`, in DER.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ORGANISATION: &[u8] = &[0x55, 0x04, 0x0a];

const OBJECT_IDENTIFIER: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// Tag `[0]`, which contains the version.
const VERSION: u8 = 0xa0;
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

/// Splits the input: tag and content of the first element, and the rest.
fn element(input: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = input.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        // No certificate is longer than 16 MB, and DER has no indefinite length.
        let count = usize::from(first & 0x7f);
        let (bytes, rest) = rest.split_at_checked(count).filter(|_| (1..=3).contains(&count))?;
        (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

fn expect(input: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = element(input)?;
    (found == tag).then_some((content, rest))
}

/// The subject of a certificate in DER.
pub(super) fn subject(certificate: &[u8]) -> Option<Subject> {
    let (certificate, _) = expect(certificate, SEQUENCE)?;
    let (mut fields, _) = expect(certificate, SEQUENCE)?;
    if let Some((_, rest)) = expect(fields, VERSION) {
        fields = rest;
    }
    // Skips serial number, algorithm, issuer and validity.
    for _ in 0..4 {
        (_, _, fields) = element(fields)?;
    }
    let (mut names, _) = expect(fields, SEQUENCE)?;
    let mut subject = Subject::default();
    while !names.is_empty() {
        let (mut set, rest) = expect(names, SET)?;
        names = rest;
        while !set.is_empty() {
            let (attribute, rest) = expect(set, SEQUENCE)?;
            set = rest;
            let (kind, value) = expect(attribute, OBJECT_IDENTIFIER)?;
            let (tag, value, _) = element(value)?;
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
