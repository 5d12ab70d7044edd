// The version as `--version` shows it. `build.rs` includes this file, so that it can be tested like other code.

/// The version, with the commit if the build has one.
pub fn full(version: &str, commit: Option<&str>) -> String {
    match commit.map(str::trim) {
        Some(commit) if !commit.is_empty() => format!("{version}+{commit}"),
        _ => version.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::full;

    #[test]
    fn a_commit_follows_the_version_where_the_build_names_one() {
        assert_eq!(full("0.3.0", Some("64a68dd0b3d3")), "0.3.0+64a68dd0b3d3");
        assert_eq!(full("0.3.0", Some("64a68dd\n")), "0.3.0+64a68dd");
        for none in [None, Some(""), Some(" ")] {
            assert_eq!(full("0.3.0", none), "0.3.0");
        }
    }

    /// Both commands print it.
    #[test]
    fn the_program_tells_the_version_that_it_was_built_with() {
        assert_eq!(crate::VERSION, full(env!("CARGO_PKG_VERSION"), option_env!("HCP_COMMIT")));
    }
}
