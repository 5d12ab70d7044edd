//! Kubeconfig files of a user, found where `kubectl` finds them. The library's errors do not say which file they are
//! about, nor which contexts there are; these do.

use std::io;
use std::path::{Path, PathBuf};

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

/// One file, or several that were merged.
#[derive(Debug, Clone)]
pub struct KubeconfigFiles {
    files: Kubeconfig,
    /// Their paths, for messages.
    origin: String,
}

/// Why kubeconfig files of a user cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigFileError {
    /// A file cannot be read.
    #[error("cannot read kubeconfig {}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A file is not a kubeconfig, or what it names cannot be used.
    #[error("{origin} is not a usable kubeconfig")]
    Malformed {
        /// The file, or the files.
        origin: String,
        /// Cause.
        source: KubeconfigError,
    },
    /// There is no such context, or none is chosen.
    #[error("kubeconfig {origin} has no {wanted}; {found}")]
    Context {
        /// The file, or the files.
        origin: String,
        /// What was looked for.
        wanted: String,
        /// Contexts that exist.
        found: String,
    },
    /// There is no home directory to look in.
    #[error("no kubeconfig was given (--kubeconfig, or KUBECONFIG), and there is no home directory")]
    NoHome,
}

impl KubeconfigFiles {
    /// Reads this file, else those that `KUBECONFIG` names, else `~/.kube/config`.
    pub fn read(path: Option<&Path>) -> Result<Self, KubeconfigFileError> {
        let paths = match path {
            Some(path) => vec![path.to_owned()],
            None => default_paths()?,
        };
        let origin = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        let malformed = |source| KubeconfigFileError::Malformed { origin: origin.clone(), source };
        let read = paths.iter().map(|path| read_one(path)).collect::<Result<Vec<_>, _>>()?;
        let files = read.into_iter().try_fold(Kubeconfig::default(), Kubeconfig::merge).map_err(malformed)?;
        Ok(Self { files, origin })
    }

    /// The credentials of this context, else of the current one.
    pub async fn config(self, context: Option<&str>) -> Result<Config, KubeconfigFileError> {
        let Self { files, origin } = self;
        let mut names: Vec<&str> = files.contexts.iter().map(|one| one.name.as_str()).collect();
        names.sort_unstable();
        let found = if names.is_empty() { "it has none".to_owned() } else { format!("it has: {}", names.join(", ")) };
        let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
        Config::from_custom_kubeconfig(files, &options).await.map_err(|source| match source {
            KubeconfigError::LoadContext(name) => {
                KubeconfigFileError::Context { origin, wanted: format!("context {name:?}"), found }
            }
            KubeconfigError::CurrentContextNotSet => {
                KubeconfigFileError::Context { origin, wanted: "current context".to_owned(), found }
            }
            source => KubeconfigFileError::Malformed { origin, source },
        })
    }
}

fn read_one(path: &Path) -> Result<Kubeconfig, KubeconfigFileError> {
    Kubeconfig::read_from(path).map_err(|error| match error {
        KubeconfigError::ReadConfig(source, path) => KubeconfigFileError::Unreadable { path, source },
        source => KubeconfigFileError::Malformed { origin: path.display().to_string(), source },
    })
}

fn default_paths() -> Result<Vec<PathBuf>, KubeconfigFileError> {
    let named = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let named: Vec<PathBuf> = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
    if !named.is_empty() {
        return Ok(named);
    }
    let home = std::env::home_dir().ok_or(KubeconfigFileError::NoHome)?;
    Ok(vec![home.join(".kube").join("config")])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::chain;

    const TWO: &str = "
clusters: [{name: c, cluster: {server: 'https://10.0.0.1:6443'}}]
contexts: [{name: b, context: {cluster: c}}, {name: a, context: {cluster: c}}, {name: lost, context: {cluster: x}}]
";

    #[tokio::test]
    async fn a_context_that_does_not_exist_is_answered_with_those_that_do() {
        for (document, context, expected) in [
            (TWO, Some("a"), None),
            (TWO, Some("nope"), Some("kubeconfig /f has no context \"nope\"; it has: a, b, lost")),
            (TWO, None, Some("kubeconfig /f has no current context; it has: a, b, lost")),
            ("", None, Some("kubeconfig /f has no current context; it has none")),
            (TWO, Some("lost"), Some("/f is not a usable kubeconfig: failed to load the cluster of context: x")),
        ] {
            let files = Kubeconfig::from_yaml(document).unwrap();
            let found = KubeconfigFiles { files, origin: "/f".to_owned() }.config(context).await;
            assert_eq!(found.err().map(|error| chain(&error)).as_deref(), expected, "{context:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_once() {
        let said = chain(&KubeconfigFiles::read(Some(Path::new("/does/not/exist"))).unwrap_err());
        assert!(said.starts_with("cannot read kubeconfig /does/not/exist: No such file"), "{said}");
        let here = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/client/kubeconfig.rs"));
        let said = chain(&KubeconfigFiles::read(Some(here)).unwrap_err());
        let expected = format!("{} is not a usable kubeconfig: failed to parse kubeconfig YAML: ", here.display());
        assert!(said.starts_with(&expected), "{said}");
    }
}
