//! What once broke a reader, and a short run of each target.

use fuzz::mutate::Mutator;
use fuzz::targets::TARGETS;
use fuzz::{from_hex, read_corpus, to_hex};

#[test]
fn what_is_in_the_corpus_breaks_nothing() {
    let mut count = 0;
    for target in TARGETS {
        for (name, bytes) in read_corpus(target.name).expect("the corpus") {
            println!("{} {name}", target.name);
            (target.run)(&bytes);
            count += 1;
        }
    }
    assert!(count > 0, "the corpus was not found");
}

/// `HCP_SEED`, which `make test` takes from the commit.
fn of_the_commit() -> u64 {
    std::env::var("HCP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(43)
}

#[test]
fn a_thousand_changes_of_each_valid_input_break_nothing() {
    for target in TARGETS {
        let seeds = (target.seeds)();
        for seed in &seeds {
            (target.run)(seed);
        }
        // One that is the same for ever, and one of the commit.
        for seed in [42, of_the_commit()] {
            let mut mutator = Mutator::new(seed);
            for _ in 0..1000 * seeds.len() {
                let input = mutator.next(&seeds);
                let outcome = std::panic::catch_unwind(|| (target.run)(&input));
                assert!(outcome.is_ok(), "{}, seed {seed}: {}", target.name, to_hex(&input));
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_inputs() {
    let seeds = (TARGETS[0].seeds)();
    let stream = |seed| {
        let mut mutator = Mutator::new(seed);
        (0..20).map(|_| mutator.next(&seeds)).collect::<Vec<_>>()
    };
    assert_eq!(stream(1), stream(1));
    assert_ne!(stream(1), stream(2));
}

#[test]
fn inputs_are_kept_as_text() {
    let bytes: Vec<u8> = (0..=255).collect();
    assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
    assert_eq!(from_hex("01 02 # a note\nff"), Some(vec![1, 2, 255]));
    assert_eq!(from_hex("012"), None);
}
