//! `service` mode: one election per Service, started and ended at the engine's request.

use std::collections::{BTreeMap, BTreeSet};

use announcer_core::campaigns::{CampaignAct, Campaigns};
use announcer_core::engine::Input;
use announcer_core::ownership::LeaseState;
use announcer_core::ownership::service::LeaseKey;
use kube::Client;
use runtime::leader::{Election, HandBack, LeaderConfig};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::global_election::lease_state;

/// Runs the requested elections until the engine ends; then all Leases are released.
pub async fn run(
    client: Client,
    pattern: LeaderConfig,
    asked: mpsc::UnboundedReceiver<BTreeSet<LeaseKey>>,
    inputs: mpsc::UnboundedSender<Input>,
) {
    let told = inputs.clone();
    let election = move |key, stop| elect(client.clone(), pattern.clone(), key, stop, told.clone());
    run_each(election, asked, inputs).await;
}

/// `election` has to release its Lease and end when its token is cancelled.
async fn run_each<E: Future<Output = HandBack> + Send + 'static>(
    election: impl Fn(LeaseKey, CancellationToken) -> E,
    mut asked: mpsc::UnboundedReceiver<BTreeSet<LeaseKey>>,
    inputs: mpsc::UnboundedSender<Input>,
) {
    let mut campaigns = Campaigns::default();
    let mut running: BTreeMap<LeaseKey, CancellationToken> = BTreeMap::new();
    let mut tasks: JoinSet<(LeaseKey, HandBack)> = JoinSet::new();
    loop {
        let acts = tokio::select! {
            wanted = asked.recv() => match wanted {
                Some(wanted) => campaigns.want(wanted),
                None => break,
            },
            Some(Ok((key, left))) = tasks.join_next() => {
                let confirmed = left.is_confirmed();
                if let HandBack::Taken(holder) = left {
                    let _ = inputs.send(Input::ServiceLease(key.clone(), LeaseState::Other(holder)));
                }
                campaigns.handed_back(&key, confirmed)
            }
        };
        for act in acts {
            match act {
                CampaignAct::Begin(key) => {
                    let stop = CancellationToken::new();
                    let election = election(key.clone(), stop.clone());
                    running.insert(key.clone(), stop);
                    tasks.spawn(async move { (key, election.await) });
                }
                CampaignAct::HandBack(key) => {
                    if let Some(stop) = running.remove(&key) {
                        stop.cancel();
                    }
                }
                CampaignAct::Released(confirmed) => {
                    let _ = inputs.send(Input::Released(confirmed));
                }
            }
        }
    }
    // An election that is still wanted keeps its Lease; the others release theirs.
    if !campaigns.are_wanted() {
        while tasks.join_next().await.is_some() {}
    }
}

/// Runs one election and reports its state.
async fn elect(
    client: Client,
    pattern: LeaderConfig,
    key: LeaseKey,
    stop: CancellationToken,
    inputs: mpsc::UnboundedSender<Input>,
) -> HandBack {
    // The Lease is polled, not watched, as in kube-vip: one watch per Service and node would overload API servers.
    let config = LeaderConfig { namespace: key.namespace.clone(), name: key.name.clone(), watch: false, ..pattern };
    let election = Election::new(client, config, None);
    let mut leadership = election.leadership();
    let mut election = std::pin::pin!(election.run(stop.clone()));
    loop {
        let state = lease_state(&leadership.borrow_and_update());
        if !stop.is_cancelled() && inputs.send(Input::ServiceLease(key.clone(), state)).is_err() {
            // The engine has ended, and the process ends too.
            return HandBack::Uncertain;
        }
        tokio::select! {
            // With this reaction to a loss the election ends only when its token is cancelled.
            ended = &mut election => return ended.unwrap_or(HandBack::Uncertain),
            Ok(()) = leadership.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::time::Duration;

    use tokio::sync::Semaphore;

    use super::*;

    /// Elections that say what happens to them, and hand back when they are let.
    struct Polls {
        ask: mpsc::UnboundedSender<BTreeSet<LeaseKey>>,
        heard: mpsc::UnboundedReceiver<Input>,
        said: mpsc::UnboundedReceiver<String>,
        may_hand_back: Arc<Semaphore>,
        api_is_away: Arc<AtomicBool>,
        taken: Arc<AtomicBool>,
    }

    impl Polls {
        fn open() -> Self {
            let (ask, asked) = mpsc::unbounded_channel();
            let (inputs, heard) = mpsc::unbounded_channel();
            let (say, said) = mpsc::unbounded_channel();
            let may_hand_back = Arc::new(Semaphore::new(0));
            let api_is_away = Arc::new(AtomicBool::new(false));
            let taken = Arc::new(AtomicBool::new(false));
            let (permits, away, by) = (Arc::clone(&may_hand_back), Arc::clone(&api_is_away), Arc::clone(&taken));
            let election = move |key: LeaseKey, stop: CancellationToken| {
                let (say, permits, away, taken) =
                    (say.clone(), Arc::clone(&permits), Arc::clone(&away), Arc::clone(&by));
                async move {
                    say.send(format!("{} begins", key.name)).unwrap();
                    stop.cancelled().await;
                    permits.acquire().await.unwrap().forget();
                    if away.load(Relaxed) {
                        return HandBack::Uncertain;
                    }
                    if taken.load(Relaxed) {
                        return HandBack::Taken("node-2".to_owned());
                    }
                    say.send(format!("{} is handed back", key.name)).unwrap();
                    HandBack::Done
                }
            };
            tokio::spawn(run_each(election, asked, inputs));
            Self { ask, heard, said, may_hand_back, api_is_away, taken }
        }

        /// What has happened when nothing moves any more after these Leases were asked for.
        async fn ask(&mut self, names: &[&str]) -> Vec<String> {
            let key = |name: &&str| LeaseKey { namespace: "default".into(), name: (*name).to_owned() };
            self.ask.send(names.iter().map(key).collect()).unwrap();
            self.said().await
        }

        async fn let_hand_back(&mut self) -> Vec<String> {
            self.may_hand_back.add_permits(1);
            self.said().await
        }

        async fn said(&mut self) -> Vec<String> {
            // The clock stands, so this is over when everybody else waits.
            tokio::time::sleep(Duration::from_millis(1)).await;
            std::iter::from_fn(|| self.said.try_recv().ok()).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_wanted_again_is_handed_back_before_its_next_election_begins() {
        let mut polls = Polls::open();
        assert_eq!(polls.ask(&["other", "web"]).await, ["other begins", "web begins"]);
        assert!(polls.ask(&["other"]).await.is_empty(), "it hands back");
        assert!(polls.ask(&["other", "web"]).await.is_empty(), "its turn has not come");
        assert_eq!(polls.let_hand_back().await, ["web is handed back", "web begins"]);
        assert!(polls.heard.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_election_that_is_not_wanted_any_more_before_its_turn_never_begins() {
        let mut polls = Polls::open();
        polls.ask(&["other", "web"]).await;
        polls.ask(&["other"]).await;
        polls.ask(&["other", "web"]).await;
        polls.ask(&["other"]).await;
        assert_eq!(polls.let_hand_back().await, ["web is handed back"]);
        assert_eq!(polls.ask(&["other", "web"]).await, ["web begins"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_engine_hears_that_nothing_is_held_any_more_when_all_have_handed_back() {
        let mut polls = Polls::open();
        polls.ask(&["other", "web"]).await;
        polls.ask(&[]).await;
        polls.let_hand_back().await;
        assert!(polls.heard.is_empty(), "one is left");
        polls.let_hand_back().await;
        assert!(matches!(polls.heard.try_recv(), Ok(Input::Released(true))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_is_made_while_the_last_lease_is_handed_back_has_its_election_at_once() {
        let mut polls = Polls::open();
        polls.ask(&["web"]).await;
        assert!(polls.ask(&[]).await.is_empty(), "it hands back");
        assert_eq!(polls.ask(&["other"]).await, ["other begins"]);
        assert_eq!(polls.let_hand_back().await, ["web is handed back"]);
        assert!(polls.heard.is_empty(), "the engine takes part again");
    }

    #[tokio::test(start_paused = true)]
    async fn the_engine_hears_who_had_taken_a_lease_before_it_was_to_be_handed_back() {
        let mut polls = Polls::open();
        polls.ask(&["web"]).await;
        polls.ask(&[]).await;
        polls.taken.store(true, Relaxed);
        polls.let_hand_back().await;
        let Ok(Input::ServiceLease(key, state)) = polls.heard.try_recv() else { panic!("it hears of the other one") };
        assert_eq!((key.name.as_str(), state), ("web", LeaseState::Other("node-2".to_owned())));
        assert!(matches!(polls.heard.try_recv(), Ok(Input::Released(true))), "it is not in our name");
    }

    #[tokio::test(start_paused = true)]
    async fn the_engine_hears_that_a_lease_may_still_be_in_its_name() {
        let mut polls = Polls::open();
        polls.ask(&["other", "web"]).await;
        polls.ask(&[]).await;
        polls.let_hand_back().await;
        polls.api_is_away.store(true, Relaxed);
        polls.let_hand_back().await;
        assert!(matches!(polls.heard.try_recv(), Ok(Input::Released(false))));

        polls.api_is_away.store(false, Relaxed);
        polls.ask(&["web"]).await;
        polls.ask(&[]).await;
        polls.let_hand_back().await;
        assert!(matches!(polls.heard.try_recv(), Ok(Input::Released(true))), "what was before does not count");
    }
}
