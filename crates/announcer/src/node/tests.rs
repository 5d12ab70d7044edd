use std::sync::atomic::Ordering;

use announcer_core::engine::KernelDone;

use super::*;

/// Notes what it is asked for.
pub(super) struct Noting(pub(super) mpsc::UnboundedSender<KernelOp>);

impl Kernel for Noting {
    async fn perform(&self, op: KernelOp) -> Option<KernelDone> {
        let _ = self.0.send(op);
        None
    }
}

fn parts(liveness: &Arc<Liveness>, recorder: Recorder) -> Parts<Noting> {
    let config = announcer_core::Config::from_env_and_args([], [], "node-1").unwrap();
    let api = runtime::scenario::Scenario::answering(|_| (404, serde_json::Value::Null));
    let (sender, receiver) = mpsc::unbounded_channel();
    let mut registry = prometheus_client::registry::Registry::default();
    Parts {
        engine: Engine::new(clock::now(), config),
        kernel: Noting(mpsc::unbounded_channel().0),
        writer: Writer::new(api.client(), runtime::work_queue::QueueMetrics::default(), sender.clone()),
        recorder,
        metrics: Arc::new(Metrics::register(&mut registry, "node-1", "lock", "0")),
        liveness: Arc::clone(liveness),
        release: CancellationToken::new(),
        campaigns: mpsc::unbounded_channel().0,
        swaps: mpsc::unbounded_channel().0,
        cards: mpsc::unbounded_channel().0,
        network: Arc::new(Notify::new()),
        api_time: ApiTime::default(),
        inputs: (sender, receiver),
    }
}

#[tokio::test]
async fn only_steps_of_the_loop_are_signs_of_life() {
    let liveness = Arc::new(Liveness::default());
    let (recorder, _events) = Recorder::to_channel("test");
    let mut process = Box::pin(run(parts(&liveness, recorder)));
    let seen = || liveness.beat.load(Ordering::Relaxed);
    assert_eq!(seen(), 0, "it has not begun");
    let two_beats = async {
        let mut first = 0;
        while first == 0 || seen() == first {
            first = if first == 0 { seen() } else { first };
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = &mut process => panic!("nobody has ended it"),
        ended = tokio::time::timeout(Duration::from_secs(40), two_beats) => ended.expect("it goes round by itself"),
    }
    assert_eq!(liveness.alive(), Ok(()));
    // Now it is stuck: whatever else runs in the process makes up for no step.
    let last = seen();
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert_eq!(seen(), last);
    assert!(liveness.alive_at(Duration::from_secs(last + 31)).is_err());
    drop(process);
}

#[tokio::test]
async fn the_engine_learns_which_questions_were_not_sent_before_it_judges_a_timer() {
    let (recorder, _events) = Recorder::to_channel("test");
    let Assembled { mut engine, mut node, mut frames, .. } = parts(&Arc::default(), recorder).assemble();
    // No interface has this index, and without a source nobody can be asked about an IPv6 address.
    for address in ["10.0.0.5", "fd00::5"] {
        let ask = Ask { link: u32::MAX / 2, address: address.parse().unwrap(), to: l2::Mac::BROADCAST };
        assert!(!node.act(Action::Ask { mac: l2::Mac::ZERO, source: None, ask }));
    }
    let address = "10.0.0.6".parse().unwrap();
    assert!(!node.act(Action::Probe { link: u32::MAX / 2, mac: l2::Mac::ZERO, address }));
    assert_eq!(engine.observations().probes.unsent, 0);
    let now = clock::now();
    node.take_frames(&mut engine, now, now + Duration::from_secs(1), &mut frames);
    assert_eq!(engine.observations().probes.unsent, 3);
    assert!(node.unsent.is_empty(), "each is told once");
}

#[test]
fn a_service_that_is_made_again_is_a_new_one_and_one_that_is_gone_is_forgotten() {
    let (key, first, second) = (ServiceKey::new("default", "web"), Uid("1".into()), Uid("2".into()));
    let mut uids = Uids::default();
    let words = [Some(&first), Some(&first), Some(&second), None, Some(&second)].map(|uid| uids.note(&key, uid));
    assert_eq!(words, ["ADDED", "MODIFIED", "ADDED", "DELETED", "ADDED"].map(Some));
    uids.note(&key, None);
    assert_eq!(uids.note(&key, None), None, "it was none of ours");
    assert!(uids.0.is_empty());
}
