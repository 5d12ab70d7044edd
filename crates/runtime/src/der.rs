//! Reads DER as far as certificates need it (RFC 5280, 4.1).

/// Tag of a sequence.
pub const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
/// Tag `[0]`, which contains the version.
const VERSION: u8 = 0xa0;

/// The elements of some input, each with its tag and its content. They end where the input is malformed.
#[derive(Debug)]
pub struct Elements<'a>(pub &'a [u8]);

impl<'a> Elements<'a> {
    /// The content of the next element, if it has this tag.
    pub fn next_of(&mut self, wanted: u8) -> Option<&'a [u8]> {
        self.next().filter(|(tag, _)| *tag == wanted).map(|(_, content)| content)
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = if first < 0x80 {
            (usize::from(first), rest)
        } else {
            // No certificate has lengths of more than four bytes, and DER has no indefinite length.
            let count = usize::from(first & 0x7f);
            let (bytes, rest) = rest.split_at_checked(count).filter(|_| (1..=4).contains(&count))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }
}

/// The fields of a certificate behind its serial number: algorithm, issuer, validity, subject. `None` if these bytes
/// are not a certificate.
pub fn fields(certificate: &[u8]) -> Option<Elements<'_>> {
    let mut certificate = Elements(Elements(certificate).next_of(SEQUENCE)?);
    let mut fields = Elements(certificate.next_of(SEQUENCE)?);
    let (tag, _) = fields.next()?;
    // A certificate of version 1 has no version field and begins with the serial number.
    if tag == VERSION {
        fields.next_of(INTEGER)?;
    } else if tag != INTEGER {
        return None;
    }
    Some(fields)
}
