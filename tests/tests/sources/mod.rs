//! Source files, for tests that read them. Each test program uses a part of it.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

/// Every source file below a directory, without what cargo has built.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display())) {
        let path = entry.expect("an entry of a directory").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The text of a source file.
pub fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What stands before the first inline module of tests. The attribute alone is no end: it also stands above a
/// declaration, and the product goes on behind that.
pub fn before_tests(text: &str) -> &str {
    const MARK: &str = "\n#[cfg(test)]\n";
    let is_inline = |at: &usize| {
        let line = text[at + MARK.len()..].lines().next().unwrap_or_default();
        let line = line.trim_start_matches("pub ").trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
        line.starts_with("mod ") && line.ends_with('{')
    };
    let end = text.match_indices(MARK).map(|(at, _)| at).find(is_inline);
    &text[..end.unwrap_or(text.len())]
}
