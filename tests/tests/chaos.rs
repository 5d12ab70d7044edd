//! A short `make chaos`: what it breaks and what must be true in the end are in `src/bin/chaos`.

use std::process::Command;

/// Another one for each commit, and the same one each time that a commit is tested.
fn seed() -> String {
    std::env::var("HCP_SEED").unwrap_or_else(|_| "22".to_owned())
}

const SECONDS: &str = "45";

#[test]
fn services_keep_their_addresses_and_nothing_leaks_through_a_minute_of_chaos() {
    if e2e::skip() {
        return;
    }
    let mut chaos = Command::new(env!("CARGO_BIN_EXE_chaos"));
    chaos.args(["--seconds", SECONDS, "--seed", &seed()]);
    let output = chaos.output().expect("the program was built beside this test");
    let (told, complaints) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}\n{complaints}");
    assert!(told.contains("all well") && told.contains("after the last fault"), "{told}");
}
