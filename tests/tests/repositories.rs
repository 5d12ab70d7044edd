//! Places that the chart may come from, as `docs/packaging.md` describes them, with both Helms: a web server with a
//! private authority and a password, several of which one is down, and an OCI registry of that kind.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::path::Path;

use e2e::repositories::{Identity, OciRegistry, READER, WebServer};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use testbed::Helm;
use testbed::helm::{Archives, RELEASE, VERSIONS, package};

/// An authority that nobody knows, in `ca.crt`, and a server's certificate by it.
fn identity(dir: &Path) -> (String, Identity) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let file = |name: &str, content: String| {
        std::fs::write(dir.join(name), content).unwrap();
        dir.join(name)
    };
    let authority = file("ca.crt", params.self_signed(&key).unwrap().pem());
    let issuer = Issuer::new(params, key);
    let server = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().signed_by(&server, &issuer).unwrap();
    let identity = Identity {
        certificate: file("server.crt", certificate.pem()),
        key: file("server.key", server.serialize_pem()),
    };
    (authority.display().to_string(), identity)
}

fn refused(helm: &Helm, words: &[&str]) -> String {
    match helm.run(words) {
        Ok(said) => panic!("{words:?} succeeded: {said}"),
        Err(error) => format!("{error:#}"),
    }
}

/// What has been got is what has been packaged.
fn got(helm: &Helm, words: &[&str], archives: &Archives) {
    let place = helm.dir().join("got");
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir(&place).unwrap();
    let place = place.display().to_string();
    helm.run(&[words, &["--destination", &place]].concat()).unwrap_or_else(|error| panic!("{words:?}: {error:#}"));
    let name = archives.plain.file_name().unwrap();
    let bytes = std::fs::read(Path::new(&place).join(name)).unwrap();
    assert!(bytes == std::fs::read(&archives.plain).unwrap(), "{words:?}: other bytes");
}

#[test]
fn a_chart_comes_from_a_web_server_with_a_password_and_an_authority_of_its_own() {
    if e2e::skip() {
        return;
    }
    for version in VERSIONS {
        let helm = Helm::new(version).unwrap();
        let archives = package(&helm.dir().join("charts"), "109.1.0").unwrap();
        let (authority, identity) = identity(helm.dir());
        let server = WebServer::guarded(archives.plain.parent().unwrap(), &identity).unwrap();
        let (url, user) = (server.url(), ["--username", READER.0, "--password", READER.1]);
        let trust = ["--ca-file", &authority];
        let add = |name: &str, options: &[&str]| helm.run(&[&["repo", "add", name, &url], options].concat());
        let unknown = format!("{:#}", add("private", &user).unwrap_err());
        assert!(unknown.contains("certificate signed by unknown authority"), "{unknown}");
        let nobody = format!("{:#}", add("private", &trust).unwrap_err());
        assert!(nobody.contains("401 Unauthorized"), "{nobody}");
        add("private", &[&trust[..], &user].concat()).unwrap();
        helm.run(&["repo", "update"]).unwrap();
        let found = helm.run(&["search", "repo", "private/harvester-cloud-provider"]).unwrap();
        assert!(found.contains(env!("CARGO_PKG_VERSION")), "{found}");
        // The authority and the password are remembered.
        got(&helm, &["pull", "private/harvester-cloud-provider"], &archives);
        let chart = ["pull", RELEASE, "--repo", &url];
        got(&helm, &[&chart[..], &trust, &user].concat(), &archives);

        // That certificates are not looked at is not remembered: each command needs the word again.
        let blind = "--insecure-skip-tls-verify";
        add("blind", &[&[blind][..], &user].concat()).unwrap();
        let pull = ["pull", "blind/harvester-cloud-provider"];
        let forgotten = refused(&helm, &pull);
        assert!(forgotten.contains("certificate signed by unknown authority"), "{forgotten}");
        got(&helm, &[&pull[..], &[blind]].concat(), &archives);
    }
}

#[test]
fn one_repository_that_does_not_answer_keeps_no_other_from_its_update() {
    if e2e::skip() {
        return;
    }
    for (version, fails) in VERSIONS.into_iter().zip([false, true]) {
        let helm = Helm::new(version).unwrap();
        let charts = helm.dir().join("charts");
        let form = package(&charts, "109.1.0").unwrap().rancher;
        let form = form.parent().unwrap();
        let (alive, dead) = (WebServer::start(form).unwrap(), WebServer::start(form).unwrap());
        helm.run(&["repo", "add", "alive", &alive.url()]).unwrap();
        helm.run(&["repo", "add", "dead", &dead.url()]).unwrap();
        let lost = dead.url();
        drop(dead);
        package(&charts, "109.1.1").unwrap();
        let said = helm.run(&["repo", "update"]);
        assert_eq!(said.is_err(), fails, "{version}: {said:?}");
        let said = said.unwrap_or_else(|error| format!("{error:#}"));
        // Helm 4's error names the place alone.
        assert!(said.contains(&lost), "{version} names {lost} nowhere: {said}");
        let found = helm.run(&["search", "repo", "alive/harvester-cloud-provider"]).unwrap();
        assert!(found.contains("109.1.1+up"), "{version}: {found}");
        // One that is named is asked alone.
        helm.run(&["repo", "update", "alive"]).unwrap();
        // The index that was got before serves on.
        assert!(helm.run(&["search", "repo", "dead/harvester-cloud-provider"]).unwrap().contains("109.1.0+up"));
    }
}

/// The two Helms say it in different words.
fn is_unauthorized(said: &str) -> bool {
    ["401", "unauthorized", "basic credential not found"].iter().any(|word| said.contains(word))
}

#[test]
fn a_chart_comes_from_a_registry_with_a_password_and_an_authority_of_its_own() {
    if e2e::skip() {
        return;
    }
    for version in VERSIONS {
        let helm = Helm::new(version).unwrap();
        let archives = package(&helm.dir().join("charts"), "109.1.0").unwrap();
        let (authority, identity) = identity(helm.dir());
        let registry = OciRegistry::guarded(&identity).unwrap();
        let (url, trust) = (registry.url(), ["--ca-file", &authority]);
        let (plain, chart) = (archives.plain.display().to_string(), format!("{}/{RELEASE}", registry.url()));
        let push = ["push", &plain, &url];
        let unknown = refused(&helm, &push);
        assert!(unknown.contains("certificate signed by unknown authority"), "{unknown}");
        let stranger = refused(&helm, &[&push[..], &trust].concat());
        assert!(is_unauthorized(&stranger), "nobody has logged in: {stranger}");
        let host = registry.host();
        let login = ["registry", "login", &host, "--username", READER.0, "--password", READER.1];
        helm.run(&[&login[..], &trust].concat()).unwrap();
        helm.run(&[&push[..], &trust].concat()).unwrap();
        let pull = ["pull", &chart, "--version", env!("CARGO_PKG_VERSION")];
        got(&helm, &[&pull[..], &trust].concat(), &archives);
        got(&helm, &[&pull[..], &["--insecure-skip-tls-verify"]].concat(), &archives);
        assert!(refused(&helm, &pull).contains("certificate signed by unknown authority"), "it was remembered");
        helm.run(&["registry", "logout", &host]).unwrap();
        let stranger = refused(&helm, &[&pull[..], &trust].concat());
        assert!(is_unauthorized(&stranger), "logged out, and still let in: {stranger}");
    }
}
