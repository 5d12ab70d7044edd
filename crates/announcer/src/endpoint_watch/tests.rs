use super::*;
use announcer_core::fixtures::view;
use announcer_core::network::Family;

fn web() -> ServiceKey {
    ServiceKey::new("default", "web")
}

fn slice(nodes: &[&str]) -> SliceView {
    SliceView {
        service: web(),
        family: Family::V4,
        ready: nodes.iter().map(|node| (*node).to_owned()).collect(),
        draining: BTreeSet::new(),
    }
}

fn key(name: &str) -> SliceKey {
    ("default".into(), name.into())
}

fn local() -> ServiceView {
    ServiceView { local_traffic: true, ..view("web", &["10.0.0.5"]) }
}

fn drain(inputs: &mut mpsc::UnboundedReceiver<Input>) -> Vec<Option<Vec<String>>> {
    std::iter::from_fn(|| inputs.try_recv().ok())
        .map(|input| match input {
            Input::Endpoints(_, nodes) => nodes.map(|nodes| nodes.into_iter().collect()),
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn nothing_is_told_before_all_slices_are_known_and_nothing_twice() {
    let (sender, mut inputs) = mpsc::unbounded_channel();
    let mut locals = LocalServices::new(sender);
    locals.service(&web(), Some(&local()));
    locals.index.take(key("1"), Some(Arc::new(slice(&["a"]))));
    locals.tell(&web());
    assert!(drain(&mut inputs).is_empty());
    locals.index.take(key("2"), Some(Arc::new(slice(&["b"]))));
    locals.complete();
    assert_eq!(drain(&mut inputs), [Some(vec!["a".to_owned(), "b".into()])]);
    for service in locals.index.take(key("3"), Some(Arc::new(slice(&["b"])))) {
        locals.tell(&service);
    }
    locals.service(&web(), Some(&local()));
    assert!(drain(&mut inputs).is_empty());
    // The deletion of a slice counts too.
    for service in locals.index.take(key("1"), None) {
        locals.tell(&service);
    }
    assert_eq!(drain(&mut inputs), [Some(vec!["b".to_owned()])]);
    locals.service(&web(), Some(&view("web", &["10.0.0.5"])));
    assert_eq!(drain(&mut inputs), [None]);
    locals.service(&web(), None);
    assert!(drain(&mut inputs).is_empty());
}

#[tokio::test]
async fn a_storm_of_slices_is_told_as_its_outcome() {
    let (sender, mut inputs) = mpsc::unbounded_channel();
    let mut locals = LocalServices::new(sender);
    locals.service(&web(), Some(&local()));
    let slices: Cache<SliceKey, SliceView> = Cache::new(|old, new| old != new);
    slices.apply(key("1"), slice(&["a"]));
    let mut changes = slices.subscribe();
    let mut handled = 0;
    locals.index.complete = true;
    let mut settle = async |locals: &mut LocalServices| {
        while let Ok(Some(touched)) = tokio::time::timeout(std::time::Duration::from_millis(10), changes.next()).await {
            handled += 1;
            let view = slices.get(&touched);
            for service in locals.index.take(touched, view) {
                locals.tell(&service);
            }
        }
        handled
    };
    assert_eq!(settle(&mut locals).await, 1);
    // Pods that come and go beside others on their nodes, and a node that flaps.
    for round in 0..1000 {
        slices.apply(key("1"), slice(if round % 2 == 0 { &["a", "b"] } else { &["a"] }));
        slices.apply(key("2"), slice(&["b"]));
    }
    assert_eq!(settle(&mut locals).await, 3, "each slice once, however often it changed");
    assert_eq!(drain(&mut inputs), [Some(vec!["a".to_owned()]), Some(vec!["a".into(), "b".into()])]);
}
