//! Watches the cloud-config file for changes. The file is read by its path each time, so that every way to replace it
//! works: a Secret volume swaps a symbolic link two levels up, a file on a host is renamed over the old one, an editor
//! writes in place.

use std::io;
use std::path::{Path, PathBuf};

use harvester_api::cloud_config::CloudConfig;
use runtime::error::chain;

/// The content of the file, and of the files that it refers to.
type Content = Result<(Vec<u8>, Vec<Option<Vec<u8>>>), String>;

/// The file, and what was seen of it so far.
pub(super) struct CloudConfigFile {
    path: PathBuf,
    namespace: String,
    /// The bytes that were read last, and the files that they refer to. They are kept because parsing at each check
    /// would be most of the work of an idle controller.
    names: (Vec<u8>, Vec<PathBuf>),
    /// The content that is in use, or was refused.
    known: Content,
    /// Content that was seen only once. It is not reported yet: the file may be only half written.
    suspect: Option<Content>,
}

/// The result of one check of the file.
#[derive(Debug)]
pub(super) enum FileCheck {
    Nothing,
    Bad(String),
    New(Box<CloudConfig>),
}

impl CloudConfigFile {
    /// Starts to watch the file from which `used` was read.
    pub(super) fn new(path: PathBuf, used: &CloudConfig) -> Self {
        let (names, known) = (Default::default(), Err(String::new()));
        let mut file = Self { path, namespace: used.namespace.clone(), names, known, suspect: None };
        file.known = file.read();
        file
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn read(&mut self) -> Content {
        let bytes = std::fs::read(&self.path)
            .map_err(|error: io::Error| format!("cannot read {}: {error}", self.path.display()))?;
        if self.names.0 != bytes {
            let files = CloudConfig::parse(&bytes).map(|cloud_config| cloud_config.files()).unwrap_or_default();
            self.names = (bytes.clone(), files);
        }
        Ok((bytes, self.names.1.iter().map(|path| std::fs::read(path).ok()).collect()))
    }

    /// Reads the file. Valid content is returned at once. Invalid content is reported when it is seen a second time,
    /// and only once.
    pub(super) fn look(&mut self) -> FileCheck {
        let content = self.read();
        if self.known == content {
            self.suspect = None;
            return FileCheck::Nothing;
        }
        match self.judge(&content) {
            Ok(cloud_config) => {
                (self.known, self.suspect) = (content, None);
                FileCheck::New(Box::new(cloud_config))
            }
            Err(text) if self.suspect.as_ref() == Some(&content) => {
                (self.known, self.suspect) = (content, None);
                FileCheck::Bad(text)
            }
            Err(_) => {
                self.suspect = Some(content);
                FileCheck::Nothing
            }
        }
    }

    fn judge(&self, content: &Content) -> Result<CloudConfig, String> {
        let (bytes, _) = content.as_ref().map_err(Clone::clone)?;
        let cloud_config = CloudConfig::parse(bytes).map_err(|error| chain(&error))?;
        if cloud_config.namespace != self.namespace {
            return Err(format!(
                "its namespace is {}, not {}: machines and load balancers of this cluster are in the latter. If it is \
                 the file of another cluster, put the right one in its place. If the machines were moved there, \
                 restart the controller and run `harvester-cloud-provider identity confirm`",
                cloud_config.namespace, self.namespace
            ));
        }
        Ok(cloud_config.with_authorities())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOUD_CONFIG: &str = "\
apiVersion: v1
kind: Config
clusters: [{name: h, cluster: {server: 'https://10.0.0.1:6443', insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: c, context: {cluster: h, user: u, namespace: guests}}]
current-context: c
";

    fn file(path: &Path) -> CloudConfigFile {
        std::fs::write(path, CLOUD_CONFIG).unwrap();
        let mut file = CloudConfigFile::new(path.to_owned(), &CloudConfig::parse(CLOUD_CONFIG.as_bytes()).unwrap());
        assert!(matches!(file.look(), FileCheck::Nothing));
        file
    }

    #[test]
    fn a_changed_file_is_used_once_however_it_was_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        // As the kubelet mounts a Secret: file -> ..data/file, ..data -> a directory per version.
        for version in ["v1", "v2"] {
            std::fs::create_dir(at(version)).unwrap();
        }
        std::os::unix::fs::symlink("v1", at("..data")).unwrap();
        std::fs::write(at("v1/cloud-config"), CLOUD_CONFIG).unwrap();
        std::os::unix::fs::symlink("..data/cloud-config", at("cloud-config")).unwrap();
        let path = at("cloud-config");
        let mut file = CloudConfigFile::new(path.clone(), &CloudConfig::parse(CLOUD_CONFIG.as_bytes()).unwrap());
        assert!(matches!(file.look(), FileCheck::Nothing), "the content in use");
        std::fs::write(at("v2/cloud-config"), CLOUD_CONFIG.replace("secret", "new")).unwrap();
        std::os::unix::fs::symlink("v2", at("..data_tmp")).unwrap();
        std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
        assert!(matches!(file.look(), FileCheck::New(_)));
        assert!(matches!(file.look(), FileCheck::Nothing));
        // As a provisioned cluster replaces a file of the host.
        std::fs::write(at("new"), CLOUD_CONFIG.replace("secret", "newer")).unwrap();
        std::fs::rename(at("new"), &path).unwrap();
        assert!(matches!(file.look(), FileCheck::New(_)));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_told_once_if_it_stays_so_and_what_works_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cloud-config");
        let mut file = file(&path);
        for (content, part) in [
            ("{", "not valid YAML"),
            (&*CLOUD_CONFIG.replace("guests", "others"), "its namespace is others, not guests"),
        ] {
            std::fs::write(&path, content).unwrap();
            assert!(matches!(file.look(), FileCheck::Nothing), "it may be half written");
            let FileCheck::Bad(text) = file.look() else { panic!("it stays so") };
            assert!(text.contains(part), "{text}");
            assert!(matches!(file.look(), FileCheck::Nothing), "once");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(file.look(), FileCheck::Nothing));
        assert!(matches!(file.look(), FileCheck::Bad(text) if text.contains("cannot read")));
        std::fs::write(&path, CLOUD_CONFIG.replace("secret", "new")).unwrap();
        assert!(matches!(file.look(), FileCheck::New(_)));
    }

    #[test]
    fn a_certificate_that_the_file_names_counts_as_part_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let (path, authority) = (directory.path().join("cloud-config"), directory.path().join("ca.crt"));
        let named = CLOUD_CONFIG
            .replace("insecure-skip-tls-verify: true", &format!("certificate-authority: '{}'", authority.display()));
        std::fs::write(&authority, "old").unwrap();
        std::fs::write(&path, &named).unwrap();
        let mut file = CloudConfigFile::new(path.clone(), &CloudConfig::parse(named.as_bytes()).unwrap());
        assert!(matches!(file.look(), FileCheck::Nothing));
        std::fs::write(&authority, "new").unwrap();
        let FileCheck::New(candidate) = file.look() else { panic!("it has changed") };
        std::fs::write(&authority, "newer").unwrap();
        assert_eq!(candidate.authority().as_deref(), Some(b"new".as_slice()), "it is what was found then");
    }
}
