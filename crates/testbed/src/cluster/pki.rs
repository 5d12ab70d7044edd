//! A certificate authority per API server, so that mixed-up credentials fail.

use std::net::IpAddr;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};

/// Signs what an API server and its clients need.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate_pem: String,
}

/// A certificate with its key, both PEM.
#[derive(Debug, Clone)]
pub struct KeyAndCertificate {
    /// The certificate.
    pub certificate_pem: String,
    /// The key, PKCS#8.
    pub key_pem: String,
}

impl Authority {
    /// A new one, ECDSA P-256 as all keys here.
    pub fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate().context("failed to generate a key")?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::CrlSign];
        let certificate: Certificate = params.self_signed(&key).context("failed to sign a certificate authority")?;
        Ok(Self { certificate_pem: certificate.pem(), issuer: Issuer::new(params, key) })
    }

    /// The certificate that clients trust.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// A certificate good for both sides of TLS: `user` and `groups` for a client, the other two for a server.
    pub fn issue(
        &self,
        user: &str,
        groups: &[&str],
        addresses: &[IpAddr],
        names: &[&str],
    ) -> Result<KeyAndCertificate> {
        let key = KeyPair::generate().context("failed to generate a key")?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user);
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        params.subject_alt_names = addresses.iter().map(|address| SanType::IpAddress(*address)).collect();
        for name in names {
            params
                .subject_alt_names
                .push(SanType::DnsName((*name).try_into().with_context(|| format!("{name:?} is no DNS name"))?));
        }
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let certificate =
            params.signed_by(&key, &self.issuer).with_context(|| format!("failed to sign a certificate for {user}"))?;
        Ok(KeyAndCertificate { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
    }
}
