//! What goes into the image: the list of its parts, what the script refuses, and that the same comes out twice. The
//! image itself is built by `make image`, which holds its size, and by the demo, which runs it; `make release-check`
//! compares two whole builds.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use testbed::programs;

fn script(name: &str) -> Command {
    Command::new(programs::workspace().join("dev").join(name))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(command: &mut Command) -> Output {
    command.output().expect("the script can be started")
}

/// What an image says of itself, out of a docker-archive.
fn config_of(archive: &Path) -> Value {
    let part = |name: &str| run(Command::new("tar").arg("-xOf").arg(archive).arg(name)).stdout;
    let json = |name: &str| serde_json::from_slice::<Value>(&part(name)).expect("JSON in the archive");
    let manifest = json("manifest.json");
    json(manifest[0]["Config"].as_str().expect("the name of a file"))["config"].clone()
}

#[test]
fn the_bill_of_materials_names_version_licence_and_checksum_of_every_part_and_is_the_same_twice() {
    let first = run(&mut script("sbom.sh"));
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert!(first.stdout == run(&mut script("sbom.sh")).stdout, "two runs differ");
    let bill: Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!(bill["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
    let components = bill["components"].as_array().unwrap();
    let mut names = BTreeSet::new();
    for component in components {
        assert!(!component["licenses"][0]["expression"].as_str().unwrap_or_default().is_empty(), "{component}");
        let ours = component["version"] == env!("CARGO_PKG_VERSION") && component["purl"].is_null();
        assert!(ours || component["hashes"][0]["content"].as_str().is_some_and(|sum| sum.len() == 64), "{component}");
        names.insert(component["name"].as_str().unwrap());
    }
    for (name, shipped) in
        [("kube", true), ("rustls", true), ("announcer", true), ("testbed", false), ("proptest", false)]
    {
        assert_eq!(names.contains(name), shipped, "{name}");
    }
}

/// Who gets an image learns from which commit, with which flags and of which parts it was made; the same twice.
#[test]
fn the_provenance_names_what_was_made_and_of_what() {
    let lock = programs::workspace().join("Cargo.lock");
    let make = || run(script("provenance.sh").arg(&lock).env("RELEASE_FLAGS", "-C flag").env_remove("BUILDER_ID"));
    let first = make();
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert!(first.stdout == make().stdout, "two runs differ");
    let said: Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!(said["_type"], "https://in-toto.io/Statement/v1");
    assert_eq!(said["predicateType"], "https://slsa.dev/provenance/v1");
    let sum = text(&run(Command::new("sha256sum").arg(&lock)).stdout)[..64].to_owned();
    assert_eq!(said["subject"], json!([{"name": "Cargo.lock", "digest": {"sha256": sum}}]));
    let definition = &said["predicate"]["buildDefinition"];
    assert_eq!(definition["externalParameters"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(definition["internalParameters"]["rustflags"], "-C flag");
    let of = definition["resolvedDependencies"].as_array().unwrap();
    assert_eq!(
        of.iter().map(|part| part["name"].as_str().unwrap()).collect::<Vec<_>>(),
        ["source", "Cargo.lock", "rustc"]
    );
    assert_eq!(of[1]["digest"]["sha256"], sum);
    let builder = said["predicate"]["runDetails"]["builder"]["id"].as_str().unwrap();
    assert!(builder.contains("unsigned"), "nobody is pretended to have signed it: {builder}");
    // An unpacked archive has no repository that could say whether something was changed.
    let outside = run(script("provenance.sh").arg(&lock).env("GIT_DIR", "/does/not/exist"));
    assert!(outside.status.success(), "{}", text(&outside.stderr));
    let said: Value = serde_json::from_slice(&outside.stdout).unwrap();
    let definition = &said["predicate"]["buildDefinition"];
    assert_eq!(definition["resolvedDependencies"][0]["digest"]["gitCommit"], "");
    assert_eq!(definition["externalParameters"]["treeIsTheCommit"], false);
}

/// Whoever calls the script may be anywhere, and what it says of a file is of that file.
#[test]
fn the_provenance_is_of_files_that_are_there_by_the_place_of_whoever_asks() {
    let (docs, lock) = (programs::workspace().join("docs"), programs::workspace().join("Cargo.lock"));
    let said = |file: &str| run(script("provenance.sh").arg(file).current_dir(&docs));
    let (near, far) = (said("../Cargo.lock"), said(&lock.display().to_string()));
    assert!(near.status.success() && near.stdout == far.stdout, "{}", text(&near.stderr));
    // One that is there only where the script works.
    for missing in ["Cargo.lock", "../docs"] {
        let refused = said(missing);
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{missing}: {}", text(&refused.stdout));
        assert!(text(&refused.stderr).contains(&format!("provenance: {missing}: ")), "{}", text(&refused.stderr));
    }
}

#[test]
fn a_binary_that_needs_libraries_is_refused() {
    let refused = run(script("image.sh").arg("/proc/self/exe"));
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("is not static; build it with: make release"), "{}", text(&refused.stderr));
}

/// Of a file that is no ELF program nothing can be read, also not that it needs libraries.
#[test]
fn a_file_that_is_no_program_is_refused() {
    let refused = run(script("image.sh").arg(programs::workspace().join("Cargo.toml")));
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("is no program; build it with: make release"), "{}", text(&refused.stderr));
}

/// W-46.
#[test]
fn the_same_binary_gives_the_same_image_whenever_it_is_built() {
    if e2e::skip() {
        return;
    }
    let dir = testbed::RunDir::new("image").unwrap();
    let source = dir.write("program.c", "int main(void) { return 0; }\n").unwrap();
    let binary = dir.path().join("program");
    assert!(run(Command::new("gcc").args(["-static", "-Os", "-o"]).arg(&binary).arg(source)).status.success());
    let images = ["first.tar", "second.tar"].map(|name| {
        let image = dir.path().join(name);
        let built = run(script("image.sh").arg(&binary).env("OUT", &image));
        assert!(built.status.success(), "{}", text(&built.stderr));
        let said = text(&built.stdout);
        assert!(said.lines().last().unwrap().starts_with("sha256 "), "{said}");
        // A tag that says which program it is: nodes do not pull a tag again that they have.
        assert!(said.contains(concat!("--set image.tag=v", env!("CARGO_PKG_VERSION"), "-")), "{said}");
        // A file that is newer in the second image.
        run(Command::new("touch").arg("-d").arg("2001-02-03").arg(&binary));
        std::fs::read(image).unwrap()
    });
    assert!(images[0] == images[1], "two builds differ");
    let config = config_of(&dir.path().join("first.tar"));
    assert_eq!(config["User"], "65532:65532");
    assert_eq!(config["Entrypoint"], json!(["/usr/bin/harvester-cloud-provider"]));
    assert_eq!(config["Labels"]["org.opencontainers.image.version"], concat!("v", env!("CARGO_PKG_VERSION")));
    for label in ["title", "description", "licenses", "revision"] {
        let value = config["Labels"][format!("org.opencontainers.image.{label}")].as_str();
        assert!(value.is_some_and(|value| !value.is_empty()), "{label}: {config}");
    }
    let mut too_large = script("image.sh");
    let refused = run(too_large.arg(&binary).env("OUT", dir.path().join("large.tar")).env("IMAGE_LIMIT", "1000"));
    assert!(!refused.status.success() && text(&refused.stderr).contains("bytes compressed, more than 1000"));
    assert!(!dir.path().join("large.tar").exists());
}
