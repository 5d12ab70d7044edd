use super::*;

#[test]
fn one_absurd_term_spoils_no_other_service_and_what_announcers_say_counts() {
    let now = Instant::now();
    let mut cluster = Cluster::new("node-1".into(), Duration::from_secs(15));
    let uid = Uid("u".into());
    let (bad, good) = (ServiceKey::new("default", "bad"), ServiceKey::new("default", "good"));
    cluster.learn(now, &bad, &uid, &OwnerRecord { host: "node-2".into(), term: Term(1 << 41) });
    cluster.learn(now, &good, &uid, &OwnerRecord { host: "node-2".into(), term: Term(7) });
    cluster.claimed(now, &bad, Term(1 << 41));
    cluster.set_card(now, Card::default());
    assert_eq!(cluster.card().term, Term(0), "the watch has shown nothing");
    for (key, term) in [(&bad, 1 << 41), (&good, 7)] {
        let view = ServiceView { key: key.clone(), uid: uid.clone(), ..crate::plan::tests::view("any", &[]) };
        cluster.learn_from_watch(now, &view, &OwnerRecord { host: "node-2".into(), term: Term(term) });
    }
    cluster.set_card(now, Card::default());
    assert_eq!(cluster.card().term, Term(7));
    let term = cluster.begin_swap(now, &good, &uid, "node-1".into(), "test", None).map(|swap| swap.owner_record.term);
    assert_eq!(term, Some(Term(8)));
    // The largest that counts at once: what follows it is still read from Services and cards.
    cluster.learn(now, &good, &uid, &OwnerRecord { host: "node-2".into(), term: Term(1 << 32) });
    let card = Card { term: cluster.records.newest_term().next(), ..Card::default() };
    assert_eq!(Card::parse(&card.to_annotation()), card);
    let member = Member { renewal: "1".into(), duration: Duration::from_secs(15), card };
    cluster.member(now, "node-2".into(), Some(member));
    assert_eq!(cluster.records.newest_term(), Term((1 << 32) + 1));
    assert_eq!(Term::parse(&cluster.records.newest_term().next().to_string()), Some(Term((1 << 32) + 2)));
    // At the very end the host that stands there counts.
    cluster.learn(now, &bad, &uid, &OwnerRecord { host: "node-1".into(), term: Term(1 << 41) });
    assert_eq!(cluster.records.of(&bad, &uid).map(|owner_record| owner_record.host.as_str()), Some("node-1"));
    // From before there was this bound.
    assert_eq!(Card::parse(r#"{"term":4611686018427387905}"#).term, Term(0));
}
