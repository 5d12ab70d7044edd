//! Completion in the shells themselves, behind the first word too, and what the program says to a person without a
//! cluster. A shell that is not installed is left out, unless `HCP_REQUIRE_ROOT` says that this machine has everything.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::path::Path;
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_harvester-cloud-provider");

/// With this program first in the path, and no cluster.
fn command(name: &str) -> Command {
    let mut command = Command::new(name);
    let directory = Path::new(PROGRAM).parent().unwrap();
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default());
    command
        .env("PATH", path)
        .env("HOME", "/nonexistent")
        .env_remove("KUBECONFIG")
        .env_remove("KUBERNETES_SERVICE_HOST");
    command
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What a shell offers behind these words.
fn offered(shell: &str, words: &str) -> Option<String> {
    let script = match shell {
        "bash" => format!(
            "source <(harvester-cloud-provider completion bash); COMP_WORDS=({words}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_TYPE=63; _clap_complete_harvester_cloud_provider x \
             \"${{COMP_WORDS[COMP_CWORD]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        ),
        "fish" => format!("harvester-cloud-provider completion fish | source; complete -C '{words}'"),
        "zsh" => format!(
            "zmodload zsh/zpty; zpty z zsh -f -i; zpty -w z 'autoload -U compinit; compinit -u -D; source \
             <(harvester-cloud-provider completion zsh); PS1=; echo rea''dy'; while zpty -r z line; do [[ $line \
             == *ready* ]] && break; done; zpty -w -n z $'{words}\\t'; for i in {{1..50}}; do sleep 0.1; while \
             zpty -r -t z line; do printf '%s' $line; done; done"
        ),
        _ => unreachable!(),
    };
    let found = command(shell).args(if shell == "bash" { &["--norc", "-c"][..] } else { &["-c"] }).arg(script).output();
    match found {
        Ok(output) => Some(text(&output)),
        Err(error) if std::env::var_os("HCP_REQUIRE_ROOT").is_none() => {
            eprintln!("{shell} is left out: {error}");
            None
        }
        Err(error) => panic!("{shell}: {error}"),
    }
}

#[test]
fn the_shells_complete_behind_the_first_word_too() {
    let mut asked = 0;
    for (words, expected) in [
        ("harvester-cloud-provider docto", "doctor"),
        ("harvester-cloud-provider status --outp", "--output"),
        ("harvester-cloud-provider status -o wid", "wide"),
        ("harvester-cloud-provider generate-addon --distrib", "--distribution"),
        ("harvester-cloud-provider announcer stat", "status"),
    ] {
        for shell in ["bash", "fish", "zsh"] {
            let Some(said) = offered(shell, words) else { continue };
            assert!(said.contains(expected), "{shell} offers behind {words:?}: {said:?}");
            asked += 1;
        }
    }
    assert!(asked >= 5, "bash is everywhere");
}

#[test]
fn a_person_without_a_cluster_gets_help_and_a_version_and_what_was_meant() {
    let run = |words: &[&str]| {
        let output = command(PROGRAM).args(words).output().unwrap();
        (output.status.code(), text(&output))
    };
    let (code, said) = run(&[]);
    assert_eq!(code, Some(0));
    assert!(said.contains("Commands:\n  status ") && !said.contains("FATAL"), "{said}");
    let (commands, flags) = (said.find("Commands:").unwrap(), said.find("--cloud-config").unwrap());
    let appendix = said.find("Appendix: ").unwrap();
    assert!(commands < flags && flags < appendix && said.rfind("--allocate-node-cidrs").unwrap() > appendix, "{said}");
    assert_eq!(run(&["version"]).1.split(' ').next(), Some("harvester-cloud-provider"));
    let (code, said) = run(&["docotr"]);
    assert!(code == Some(2) && said.contains("'doctor'"), "{said}");
    assert!(!run(&["status", "--kubeconfig", "/none"]).1.contains('\u{1b}'), "no colour without a terminal");
}
