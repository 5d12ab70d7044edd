//! Writes a file that only its owner may read, completely or not at all.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The file to replace. A symbolic link is followed, so that the link stays. Only a regular file is replaced: a rename
/// over /dev/stdout would remove the device for the whole machine.
fn destination(path: &Path) -> std::io::Result<PathBuf> {
    let refused = |why: &str| {
        let text = format!("{why}; accepted: a regular file or a new one. Leave --output-file out for standard output");
        std::io::Error::new(ErrorKind::InvalidInput, text)
    };
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => std::fs::canonicalize(path),
        Ok(found) if found.is_dir() => Err(refused("it is a directory")),
        Ok(_) => Err(refused("it is not a regular file")),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Err(_) if path.is_symlink() => Err(refused("it is a symbolic link to a file that does not exist")),
        Err(_) if path.file_name().is_none() || path.as_os_str().as_bytes().ends_with(b"/") => {
            Err(refused("it does not name a file"))
        }
        Err(_) => Ok(path.to_owned()),
    }
}

/// Creates a file that only its owner may read, in the same directory.
fn create_beside(path: &Path) -> std::io::Result<(PathBuf, File)> {
    let beside = path.with_file_name(format!(
        ".{}.{}",
        path.file_name().unwrap_or_default().to_string_lossy(),
        std::process::id()
    ));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    Ok((beside, file))
}

/// Checks whether [`write`] can succeed. Leaves no file behind, even if the program is interrupted later.
pub fn check_writable(path: &Path) -> std::io::Result<()> {
    let (beside, _) = create_beside(&destination(path)?)?;
    std::fs::remove_file(beside)
}

/// Writes the file. Nobody else can read it, neither during the write nor if a readable file of that name existed.
pub fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let path = destination(path)?;
    let (beside, mut file) = create_beside(&path)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let result = written.and_then(|()| std::fs::rename(&beside, &path));
    if result.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&beside);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_private_even_where_a_readable_one_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cloud-config");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        write(&path, "new").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_regular_files_are_replaced_and_a_link_to_one_stays_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("file"), "old").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("nothing"), at("dangling")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        write(&at("link"), "new").unwrap();
        assert!(at("link").is_symlink());
        assert_eq!(std::fs::read_to_string(at("file")).unwrap(), "new");
        for (path, why) in [
            (at("socket"), "not a regular file"),
            (at("dangling"), "a symbolic link to a file that does not exist"),
            (directory.path().to_owned(), "a directory"),
            (at("new/"), "does not name a file"),
        ] {
            for error in [check_writable(&path).unwrap_err(), write(&path, "new").unwrap_err()] {
                let error = error.to_string();
                assert!(error.contains(why) && error.contains("for standard output"), "{}: {error}", path.display());
            }
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 4);
    }
}
