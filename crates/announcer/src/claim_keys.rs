//! The keys of claims, read from the directory in which their Secret is mounted (decisions.md 16). The kubelet replaces
//! the whole content when the Secret changes.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use announcer_core::claim::ClaimSecret;
use announcer_core::engine::Input;
use tokio::sync::mpsc;

/// Interval between two reads. A new key is only accepted for minutes before it is used for sending, so this is soon
/// enough.
const LOOK: Duration = Duration::from_secs(10);
/// A directory with more files is not a Secret of keys.
const MOST: usize = 16;

/// Why there are no usable keys.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The directory or a file in it.
    #[error("failed to read the claim keys in {path} (vip_claim_keys)")]
    Read {
        /// The directory or file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// No file.
    #[error("{path} (vip_claim_keys) contains no files; accepted are 1 to {MOST} files with one key each")]
    None {
        /// The directory.
        path: PathBuf,
    },
    /// It comes after as many as are used.
    #[error("key {path} (vip_claim_keys) is more than the accepted number of keys; accepted are 1 to {MOST}")]
    TooMany {
        /// The file.
        path: PathBuf,
    },
    /// The key is so short that it could be guessed.
    #[error("key {path} (vip_claim_keys) has {length} bytes; accepted are {} or more", ClaimSecret::LEAST)]
    Short {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
}

/// Content of the directory.
#[derive(Debug, Default)]
pub struct ClaimKeyFiles {
    /// The keys, in the order of the names of their files.
    pub keys: Vec<ClaimSecret>,
    /// Files that are no keys, with the reason; the good ones are used all the same.
    skipped: Vec<KeysError>,
}

impl ClaimKeyFiles {
    fn tell(&self) {
        for error in &self.skipped {
            tracing::warn!("the announcer leaves out a claim key: {error}; it uses {} keys", self.keys.len());
        }
    }

    fn skipped(&self) -> String {
        self.skipped.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }
}

/// Reads all keys, with a warning for each file that is no key. The announcer starts with the good ones.
pub fn read_first(directory: &Path) -> Result<ClaimKeyFiles, KeysError> {
    let found = read(directory)?;
    found.tell();
    Ok(found)
}

/// Reads all keys, in the order of their names. Names that begin with a dot belong to the kubelet.
fn read(directory: &Path) -> Result<ClaimKeyFiles, KeysError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| KeysError::Read { path, source }
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed(directory))? {
        let path = entry.map_err(failed(directory))?.path();
        let hidden = path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'));
        if !hidden && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    let mut found = ClaimKeyFiles::default();
    for path in files {
        let bytes = std::fs::read(&path).map_err(failed(&path))?;
        let length = bytes.len();
        match ClaimSecret::new(bytes) {
            Some(_) if found.keys.len() == MOST => found.skipped.push(KeysError::TooMany { path }),
            Some(key) => found.keys.push(key),
            None => found.skipped.push(KeysError::Short { path, length }),
        }
    }
    if found.keys.is_empty() {
        return Err(found.skipped.into_iter().next().unwrap_or(KeysError::None { path: directory.to_owned() }));
    }
    Ok(found)
}

/// Tells the engine the keys whenever they change. An error is logged once, and the last keys stay in use.
pub async fn follow(directory: PathBuf, first: ClaimKeyFiles, inputs: mpsc::UnboundedSender<Input>) {
    let mut looks = tokio::time::interval(LOOK);
    let (mut told, mut skipped, mut known) = (String::new(), first.skipped(), first.keys);
    loop {
        looks.tick().await;
        match read(&directory) {
            Ok(found) => {
                told.clear();
                if found.skipped() != skipped {
                    found.tell();
                    skipped = found.skipped();
                }
                if found.keys != known {
                    tracing::info!(
                        keys = found.keys.len(),
                        "the claim keys have changed; the announcer uses the new ones"
                    );
                    known.clone_from(&found.keys);
                    let _ = inputs.send(Input::ClaimKeys(found.keys));
                }
            }
            Err(error) => {
                let text = runtime::error::chain(&error);
                if text != told {
                    tracing::warn!("{text}; the announcer goes on with the claim keys that it read last");
                    told = text;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn secret(text: &str) -> ClaimSecret {
        ClaimSecret::new(text.as_bytes().to_vec()).unwrap()
    }

    /// As the kubelet mounts a Secret: `a -> ..data/a`, `..data -> ..1`.
    fn mounted(version: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), version, files);
        directory
    }

    fn write(directory: &Path, version: &str, files: &[(&str, &str)]) {
        std::fs::create_dir(directory.join(version)).unwrap();
        for (name, text) in files {
            std::fs::write(directory.join(version).join(name), text).unwrap();
            let _ = symlink(format!("..data/{name}"), directory.join(name));
        }
        symlink(version, directory.join("..new")).unwrap();
        std::fs::rename(directory.join("..new"), directory.join("..data")).unwrap();
    }

    const OLD: &str = "an old key of some bytes";
    const NEW: &str = "a new key of some bytes";

    #[test]
    fn each_file_is_a_key_in_the_order_of_names_and_what_the_kubelet_needs_itself_is_none() {
        let directory = mounted("..1", &[("b", NEW), ("a", OLD)]);
        assert_eq!(read(directory.path()).unwrap().keys, [secret(OLD), secret(NEW)]);
    }

    #[test]
    fn an_error_names_file_and_what_is_accepted() {
        let directory = mounted("..1", &[("short", "123")]);
        let text = read(directory.path()).unwrap_err().to_string();
        assert!(text.contains("short") && text.contains("3 bytes") && text.contains("16 or more"), "{text}");
        let empty = tempfile::tempdir().unwrap();
        assert!(read(empty.path()).unwrap_err().to_string().contains("1 to 16"));
        assert!(matches!(read(&empty.path().join("none")), Err(KeysError::Read { .. })));
    }

    #[test]
    fn a_file_that_is_no_key_is_left_out_and_named_while_another_one_is_good() {
        let names: Vec<String> = (0..=MOST).map(|number| format!("k{number:02}")).collect();
        let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), OLD)).collect();
        for (files, keys, named) in [
            (vec![("a", "123"), ("b", OLD)], 1, "/a "),
            (vec![("a", OLD), ("b", "")], 1, "/b "),
            (many.clone(), MOST, "/k16 "),
            ([vec![("a", "123")], many[..MOST].to_vec()].concat(), MOST, "/a "),
        ] {
            let directory = mounted("..1", &files);
            let found = read(directory.path()).unwrap();
            assert_eq!((found.keys.len(), found.skipped.len()), (keys, 1), "{files:?}");
            assert!(found.skipped().contains(named), "{}", found.skipped());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rotated_secret_is_told_and_one_that_vanishes_leaves_the_last_keys() {
        let directory = mounted("..1", &[("a", OLD)]);
        let (inputs, mut told) = mpsc::unbounded_channel();
        let following = tokio::spawn(follow(directory.path().to_owned(), read(directory.path()).unwrap(), inputs));
        tokio::time::sleep(LOOK * 3).await;
        assert!(told.try_recv().is_err(), "nothing has changed");
        write(directory.path(), "..2", &[("a", OLD), ("b", NEW)]);
        tokio::time::sleep(LOOK * 2).await;
        assert!(matches!(told.try_recv(), Ok(Input::ClaimKeys(keys)) if keys == [secret(OLD), secret(NEW)]));
        std::fs::remove_file(directory.path().join("..data")).unwrap();
        tokio::time::sleep(LOOK * 3).await;
        assert!(told.try_recv().is_err());
        following.abort();
    }
}
