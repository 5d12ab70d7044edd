//! Puts the version, with the commit where the build names one (`HCP_COMMIT`), into the binary.

#[path = "src/version.rs"]
mod version;

fn main() {
    let number = std::env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    let commit = std::env::var("HCP_COMMIT").ok();
    println!("cargo:rustc-env=HCP_VERSION={}", version::full(&number, commit.as_deref()));
    println!("cargo:rerun-if-env-changed=HCP_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/version.rs");
}
