//! TLS versions and cipher suites: `--tls-min-version` and `--tls-cipher-suites`, with Go's names.

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{CipherSuite, SupportedCipherSuite, SupportedProtocolVersion};

/// The TLS versions and cipher suites that the server offers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Handshake {
    /// Nothing older than TLS 1.3.
    only_13: bool,
    /// Suites of TLS 1.2; empty: all suites of the library.
    suites: Vec<CipherSuite>,
}

/// Why the flags for TLS cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum HandshakeError {
    /// `--tls-min-version`.
    #[error(
        "--tls-min-version={0}: accepted: VersionTLS12, VersionTLS13 (VersionTLS10 and VersionTLS11 mean VersionTLS12)"
    )]
    Version(String),
    /// `--tls-cipher-suites`.
    #[error("--tls-cipher-suites={given}: none of them is served here; accepted: {accepted}")]
    Suites {
        /// The value of the flag.
        given: String,
        /// All accepted names.
        accepted: String,
    },
}

impl Handshake {
    /// Parses the flags with Go's names. The warnings name suites that are not supported.
    pub fn parse(min_version: &str, suites: &[String]) -> Result<(Self, Vec<String>), HandshakeError> {
        let mut warnings = Vec::new();
        let only_13 = match min_version {
            "" | "VersionTLS12" => false,
            "VersionTLS13" => true,
            "VersionTLS10" | "VersionTLS11" => {
                warnings.push(format!("--tls-min-version={min_version}: TLS 1.2 is the oldest version that is served"));
                false
            }
            other => return Err(HandshakeError::Version(other.to_owned())),
        };
        let all: Vec<CipherSuite> = ring::ALL_CIPHER_SUITES.iter().map(SupportedCipherSuite::suite).collect();
        let old = |suite: &&CipherSuite| suite.as_str().is_some_and(|name| name.starts_with("TLS_ECDHE_"));
        let known: Vec<CipherSuite> = all.iter().filter(old).copied().collect();
        let names: Vec<&str> = suites.iter().map(|name| name.trim()).filter(|name| !name.is_empty()).collect();
        let mut chosen = Vec::new();
        for name in &names {
            // Two of Go's names are older than the standard's.
            let full = if name.ends_with("_POLY1305") { format!("{name}_SHA256") } else { (*name).to_owned() };
            match known.iter().find(|suite| suite.as_str() == Some(&full)) {
                Some(suite) => chosen.push(*suite),
                // These suites cannot be selected in Go either.
                None if ["TLS_AES_", "TLS_CHACHA20_"].iter().any(|prefix| name.starts_with(prefix)) => {}
                None => warnings.push(format!("--tls-cipher-suites: {name} is not served here")),
            }
        }
        let only_newest = names.iter().any(|name| name.starts_with("TLS_AES_") || name.starts_with("TLS_CHACHA20_"));
        if chosen.is_empty() && !names.is_empty() && !only_13 && !only_newest {
            let accepted: Vec<&str> = known.iter().filter_map(CipherSuite::as_str).collect();
            return Err(HandshakeError::Suites { given: names.join(","), accepted: accepted.join(", ") });
        }
        // If only suites of TLS 1.3 are named, TLS 1.2 is not offered.
        let only_13 = only_13 || chosen.is_empty() && !names.is_empty();
        Ok((Self { only_13, suites: chosen }, warnings))
    }

    pub(super) fn provider(&self) -> CryptoProvider {
        let mut provider = ring::default_provider();
        let wanted = |suite: &SupportedCipherSuite| {
            self.suites.is_empty() || suite.tls13().is_some() || self.suites.contains(&suite.suite())
        };
        provider.cipher_suites.retain(wanted);
        provider
    }

    pub(super) fn versions(&self) -> Vec<&'static SupportedProtocolVersion> {
        if self.only_13 { vec![&TLS13] } else { vec![&TLS13, &TLS12] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_suites_are_those_of_the_flags_by_gos_names() {
        let parse = |version: &str, suites: &str| {
            let suites: Vec<String> = suites.split(',').map(str::to_owned).collect();
            Handshake::parse(version, &suites)
        };
        let offered = |handshake: &Handshake| handshake.provider().cipher_suites.len();
        let (all, warnings) = parse("", "").unwrap();
        assert_eq!((&all, warnings.len()), (&Handshake::default(), 0));
        let (one, warnings) = parse("VersionTLS12", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384").unwrap();
        assert!(offered(&one) < offered(&all) && one.versions().len() == 2 && warnings.is_empty());
        let (new, _) = parse("VersionTLS13", "").unwrap();
        assert_eq!(new.versions().len(), 1);
        let (old, warnings) =
            parse("VersionTLS10", "TLS_RSA_WITH_AES_128_CBC_SHA,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305").unwrap();
        assert_eq!((old.suites.len(), warnings.len()), (1, 2), "{warnings:?}");
        assert_eq!(parse("1.2", ""), Err(HandshakeError::Version("1.2".into())));
        let error = parse("", "TLS_RSA_WITH_RC4_128_SHA").unwrap_err().to_string();
        assert!(error.contains("RC4") && error.contains("accepted: ") && error.contains("TLS_ECDHE_ECDSA"), "{error}");
        assert_eq!(parse("", "TLS_AES_128_GCM_SHA256").unwrap().0.versions().len(), 1);
    }
}
