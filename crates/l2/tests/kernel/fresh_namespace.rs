//! A network namespace for the thread of one test. Tests of several crates share this file.

use std::process::Command;

use rustix::thread::UnshareFlags;

/// Moves this thread, and the processes it will start, into a new network namespace.
pub fn leave_for_a_fresh_namespace() {
    // `unshare` is deprecated because of its FILES flag; this one does not touch descriptors.
    #[allow(deprecated)]
    rustix::thread::unshare(UnshareFlags::NEWNET).expect("a new network namespace");
}

/// What a program says that has to succeed.
#[allow(dead_code)] // not each crate runs programs in its namespaces
pub fn shell(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split_whitespace()).output().expect("the program exists");
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
