//! The images that the suite's pods run, under the names that it asks for: nothing is pulled.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use testbed::node::ImageStore;
use testbed::node::images::install;
use testbed::programs;

use super::suite;

/// Cluster DNS.
pub const DNS: &str = "localhost/coredns:1";
/// What the tests run inside of pods: Debian's programs, dynamically linked, so that they ask the resolver.
const PROGRAMS: [(&str, &str); 18] = [
    ("dash", "bin/sh"),
    ("bash", "bin/bash"),
    ("cat", "bin/cat"),
    ("curl", "usr/bin/curl"),
    ("date", "bin/date"),
    ("echo", "bin/echo"),
    ("env", "usr/bin/env"),
    ("grep", "bin/grep"),
    ("hostname", "bin/hostname"),
    ("ip", "sbin/ip"),
    ("nc.openbsd", "bin/nc"),
    ("seq", "usr/bin/seq"),
    ("sleep", "bin/sleep"),
    ("ss", "bin/ss"),
    ("tail", "usr/bin/tail"),
    ("test", "usr/bin/test"),
    ("timeout", "usr/bin/timeout"),
    ("wget", "usr/bin/wget"),
];

/// Builds them.
pub fn build(images: &ImageStore) -> Result<()> {
    images.build_program(DNS, &programs::tool("coredns")?)?;
    let context = images.context("agnhost")?;
    let root = context.join("root");
    install(&programs::tool("agnhost")?, &root, "agnhost")?;
    for (program, target) in PROGRAMS {
        install(&found(program)?, &root, target)?;
    }
    for directory in ["tmp", "uploads", "etc"] {
        let path = root.join(directory);
        std::fs::create_dir_all(&path).with_context(|| format!("failed to create {}", path.display()))?;
    }
    // The one of busybox, for which the suite is written, does not try again.
    let file = root.join("etc/wgetrc");
    std::fs::write(&file, "tries = 1\n").with_context(|| format!("failed to write {}", file.display()))?;
    let names = suite::images()?;
    for name in [names.agnhost, names.pause] {
        let command = if name.contains("/pause:") { ", \"pause\"" } else { "" };
        let dockerfile = format!(
            "FROM scratch\nCOPY root/ /\nENV PATH=/usr/bin:/bin:/usr/sbin:/sbin:/\n\
             ENTRYPOINT [\"/agnhost\"{command}]\nCMD [{}]\n",
            if command.is_empty() { "\"pause\"" } else { "" }
        );
        images.build(&name, &dockerfile, &context)?;
    }
    Ok(())
}

fn found(program: &str) -> Result<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let directories = path.split(':').chain(["/usr/bin", "/bin", "/usr/sbin", "/sbin"]);
    let mut places = directories.map(|directory| Path::new(directory).join(program));
    places
        .find(|path| path.is_file())
        .with_context(|| format!("there is no program {program}; get it with: dev/tools.sh --conformance"))
}
