//! `fuzz`: changes valid input for as long as it is told to; what breaks a promise is made smaller, kept and told.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use fuzz::mutate::Mutator;
use fuzz::targets::{TARGETS, Target};
use fuzz::{corpus, read_corpus, to_hex};

/// Hostile input for everything that reads from the wire.
#[derive(Parser)]
struct Arguments {
    /// How long each target is fed
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The stream of changes; the same number gives the same inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One target: arp, ndp, claim, dhcp, dhcp6; all without it
    #[arg(long)]
    target: Option<String>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let chosen: Vec<&Target> =
        TARGETS.iter().filter(|target| arguments.target.as_ref().is_none_or(|wanted| wanted == target.name)).collect();
    anyhow::ensure!(
        !chosen.is_empty(),
        "no target {:?}: there are {}",
        arguments.target.unwrap_or_default(),
        TARGETS.map(|target| target.name).join(", ")
    );
    let mut broken = false;
    for target in chosen {
        let mut seeds = (target.seeds)();
        let kept = read_corpus(target.name).context("failed to read the corpus")?;
        seeds.extend(kept.into_iter().map(|(_, bytes)| bytes));
        let mut mutator = Mutator::new(arguments.seed);
        let begun = Instant::now();
        let mut count = 0_u64;
        while begun.elapsed() < Duration::from_secs(arguments.seconds) {
            let input = mutator.next(&seeds);
            count += 1;
            if breaks(target, &input) {
                let small = shrink(target, input);
                let path = corpus(target.name).join(format!("seed-{}-{count}.hex", arguments.seed));
                std::fs::create_dir_all(corpus(target.name)).context("failed to make the corpus directory")?;
                std::fs::write(&path, to_hex(&small)).with_context(|| format!("failed to write {}", path.display()))?;
                println!("{}: BROKEN after {count} inputs, kept as {}", target.name, path.display());
                broken = true;
                break;
            }
        }
        println!("{}: {count} inputs in {:.0} s", target.name, begun.elapsed().as_secs_f64());
    }
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn breaks(target: &Target, input: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err()
}

/// Leaves out and blanks what is not needed to break it.
fn shrink(target: &Target, mut input: Vec<u8>) -> Vec<u8> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for length in [64, 16, 4, 1] {
        let mut at = 0;
        while at < input.len() {
            let mut shorter = input.clone();
            shorter.drain(at..(at + length).min(input.len()));
            if breaks(target, &shorter) {
                input = shorter;
            } else {
                at += length;
            }
        }
    }
    for at in 0..input.len() {
        let mut blank = input.clone();
        blank[at] = 0;
        if breaks(target, &blank) {
            input = blank;
        }
    }
    std::panic::set_hook(hook);
    input
}
