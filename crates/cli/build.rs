//! Puts the version, with the commit where the build names one (`HCP_COMMIT`), into the binary.

fn main() {
    let version = std::env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    let full = match std::env::var("HCP_COMMIT") {
        Ok(commit) if !commit.is_empty() => format!("{version}+{commit}"),
        _ => version,
    };
    println!("cargo:rustc-env=HCP_VERSION={full}");
    println!("cargo:rerun-if-env-changed=HCP_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
}
