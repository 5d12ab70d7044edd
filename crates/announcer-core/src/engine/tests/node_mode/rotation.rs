//! The keys of claims are exchanged while addresses move: two engines, of which the former owner hears nothing but the
//! claim.

use super::*;

const NAMES: [&str; 2] = ["node-1", "node-2"];
const ADDRESS: &str = "10.0.0.5";
/// In the order of the names of their files.
const OLD: &str = "an old key of some bytes";
const NEW: &str = "a new key of some bytes";

fn keys(texts: &[&str]) -> Input {
    Input::ClaimKeys(texts.iter().filter_map(|text| ClaimSecret::new(text.as_bytes().to_vec())).collect())
}

/// The engine of this node. node-1 is the owner, as everybody knows.
fn engine_of(me: &str, secret: &[&str]) -> Cluster {
    let (mut network, own) = (network(), card(me).links.remove(0));
    network.links.iter_mut().filter(|link| link.index == 2).for_each(|link| link.mac = Some(own.mac));
    let on_it = network.addresses.iter_mut().filter(|address| address.interface == 2);
    on_it.for_each(|address| address.net = own.addresses[0]);
    let mut node = Node::new(&[], network);
    let env = [("election_mode".to_owned(), "node".to_owned())];
    node.engine = Engine::new(node.start, Config::from_env_and_args(env, [], me).unwrap());
    node.tick();
    node.feed(keys(secret));
    node.feed(Input::KubeProxy(true));
    for name in NAMES {
        node.feed(Input::Node(name.to_owned(), Some(FACTS)));
    }
    node.feed(Input::NodesSynced { readable: true });
    node.upsert(seated("web", ADDRESS, NAMES[0], 4));
    node.feed(Input::Synced);
    let mut cluster = Cluster { node, renewals: 0 };
    cluster.renew(&NAMES);
    cluster.node.feed(Input::MembersSynced);
    cluster
}

struct Two {
    nodes: [Cluster; 2],
    owner: usize,
    term: u64,
}

impl Two {
    fn new(secret: &[&str]) -> Self {
        let mut two = Self { nodes: NAMES.map(|name| engine_of(name, secret)), owner: 0, term: 4 };
        two.pass(Duration::from_secs(5));
        two
    }

    /// The kubelet of a node shows this content of the Secret.
    fn shown(&mut self, at: usize, secret: &[&str]) {
        self.nodes[at].node.feed(keys(secret));
    }

    /// Both renew their Leases, and the owner answers the other one.
    fn pass(&mut self, time: Duration) {
        for _ in 0..time.as_secs() / 5 {
            for (at, cluster) in self.nodes.iter_mut().enumerate() {
                for name in NAMES {
                    cluster.member(name, Card { term: Term(self.term), ..card(name) });
                }
                let owner = [(NAMES[self.owner], ADDRESS)];
                cluster.quiet(5000, if at == self.owner { &[] } else { &owner }, &[]);
            }
        }
    }

    /// The other node becomes the owner. Returns its claim, and how often the former owner reads the record when it
    /// hears that.
    fn moves(&mut self) -> (Frame, usize) {
        let (from, to) = (self.owner, 1 - self.owner);
        (self.owner, self.term) = (to, self.term + 1);
        self.nodes[to].node.claims.clear();
        self.nodes[to].shows("web", NAMES[to], self.term);
        self.nodes[to].node.pass_ms(50);
        let claim = *self.nodes[to].node.claims.last().expect("the former owner is told");
        self.nodes[from].node.feed(Input::Heard(claim));
        (claim, std::mem::take(&mut self.nodes[from].node.swaps).len())
    }

    /// The watch of the former owner shows the record at last.
    fn is_known(&mut self) {
        self.nodes[1 - self.owner].shows("web", NAMES[self.owner], self.term);
    }

    fn serving(&self) -> Vec<&'static str> {
        NAMES.into_iter().zip(&self.nodes).filter(|(_, cluster)| cluster.has()).map(|(name, _)| name).collect()
    }
}

/// An entry is added, and the first one is removed ten minutes later. Kubelets show that within two minutes.
#[test]
fn while_keys_are_exchanged_each_claim_is_believed_at_once_and_the_owner_serves() {
    let changes = [(60, 0, &[OLD, NEW][..]), (150, 1, &[OLD, NEW][..]), (660, 1, &[NEW][..]), (750, 0, &[NEW][..])];
    let mut two = Two::new(&[OLD]);
    let mut sealed = BTreeSet::new();
    for second in (0..960).step_by(30) {
        for (_, at, secret) in changes.into_iter().filter(|(when, ..)| *when == second) {
            two.shown(at, secret);
            assert_eq!(two.serving(), [NAMES[two.owner]], "after {second} s");
        }
        let (claim, reads) = two.moves();
        assert_eq!((two.serving(), reads), (vec![NAMES[two.owner]], 1), "after {second} s; it is read behind that");
        let is_by = |text: &&&str| tag::open_with(&[Key::of(text.as_bytes(), &uid("web"))], &claim).is_ok();
        sealed.extend([OLD, NEW].iter().filter(is_by).copied());
        two.is_known();
        two.pass(Duration::from_secs(30));
        assert_eq!(two.serving(), [NAMES[two.owner]], "half a minute later");
    }
    assert_eq!(sealed.len(), 2, "both were used: {sealed:?}");
}

#[test]
fn a_key_that_is_replaced_at_once_costs_the_time_in_which_the_record_is_read() {
    let mut two = Two::new(&[OLD]);
    two.shown(0, &[NEW]);
    let (_, reads) = two.moves();
    assert_eq!((two.serving(), reads), (NAMES.to_vec(), 1));
    two.is_known();
    assert_eq!(two.serving(), [NAMES[1]]);
}
