//! The client against a real dnsmasq, over a cable between two fresh network namespaces and through a real packet
//! socket. Needs root and dnsmasq; without them it says so and passes, unless `HCP_REQUIRE_ROOT=1` demands that it runs.
//!
//! The client's clock is moved by hand, so a lease of two minutes (dnsmasq's shortest) takes no time.

use std::{
    env, fs,
    net::Ipv4Addr,
    panic,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use dhcp_client::{Client, Config, Input, LostReason, Mac, Output, State};
use l2::{PacketSocket, Traffic};
use rustix::thread::UnshareFlags;

const FIRST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Long enough for a loaded machine; a passing test waits for events, not for this.
const PATIENCE: Duration = Duration::from_secs(20);

/// A process that ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server at one end of a cable, a client at the other.
struct Lan {
    files: tempfile::TempDir,
    /// Holds the server's namespace while no dnsmasq runs in it.
    keeper: Running,
    dnsmasq: Option<Running>,
    socket: PacketSocket,
    client: Client,
    /// How far the client's clock is ahead of the real one.
    ahead: Duration,
    /// What all steps said, except frames.
    said: Vec<Output>,
    /// The neighbour who uses whatever address is probed.
    neighbour: Option<Mac>,
}

/// Runs a test on a thread of its own, in a fresh namespace.
fn on_a_lan<T: AsyncFnOnce(&mut Lan) + Send + 'static>(test: T) {
    let has_dnsmasq = Command::new("dnsmasq").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !rustix::process::geteuid().is_root() || !has_dnsmasq {
        assert!(
            env::var_os("HCP_REQUIRE_ROOT").is_none_or(|value| value != "1"),
            "HCP_REQUIRE_ROOT=1, but this is not root or there is no dnsmasq"
        );
        eprintln!("SKIPPED: needs root and dnsmasq");
        return;
    }
    let outcome = thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut lan = Lan::new();
            test(&mut lan).await;
        });
    })
    .join();
    if let Err(panic) = outcome {
        panic::resume_unwind(panic);
    }
}

/// Moves this thread, and the processes it will start, into a new network namespace.
fn leave_for_a_fresh_namespace() {
    // `unshare` is deprecated because of its FILES flag; this one does not touch descriptors.
    #[allow(deprecated)]
    rustix::thread::unshare(UnshareFlags::NEWNET).expect("a new network namespace");
}

fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split_whitespace()).output().expect("the program exists");
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn config() -> Config {
    Config { hostname: Some("web".into()), ..Config::new(Mac::from([0, 0, 0x6c, 1, 2, 3])) }
}

impl Lan {
    fn new() -> Self {
        let keeper = thread::spawn(|| {
            leave_for_a_fresh_namespace();
            Running(Command::new("sleep").arg("600").spawn().expect("sleep"))
        })
        .join()
        .expect("a namespace for the server");
        leave_for_a_fresh_namespace();
        let mac = config().mac;
        run("ip", &format!("link add c0 address {mac} type veth peer name s0 netns {}", keeper.0.id()));
        run("ip", "link set c0 up");
        let index = run("ip", "-o link show c0").split(':').next().and_then(|text| text.trim().parse().ok());
        let socket = PacketSocket::open(index.expect("ip shows an index"), Traffic::DhcpClient).expect("packet socket");
        let client = Client::new(config(), Instant::now(), 1).expect("a good configuration");
        let files = tempfile::tempdir().expect("a directory");
        let lan =
            Self { files, keeper, dnsmasq: None, socket, client, ahead: Duration::ZERO, said: vec![], neighbour: None };
        lan.at_server("ip", "link set lo up");
        lan.at_server("ip", &format!("addr add {SERVER}/24 dev s0"));
        lan.at_server("ip", "link set s0 up");
        lan
    }

    fn at_server(&self, program: &str, arguments: &str) {
        run("nsenter", &format!("--net=/proc/{}/ns/net {program} {arguments}", self.keeper.0.id()));
    }

    fn leases(&self) -> PathBuf {
        self.files.path().join("leases")
    }

    fn serve(&mut self, options: &str) {
        let log = fs::File::create(self.files.path().join("log")).expect("a log");
        let dnsmasq = Command::new("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", self.keeper.0.id()))
            .args(["dnsmasq", "--keep-in-foreground", "--log-facility=-", "--log-dhcp", "--conf-file=/dev/null"])
            .args(["--port=0", "--interface=s0", "--bind-interfaces", "--no-ping", "--user=root", "--pid-file"])
            .arg(format!("--dhcp-leasefile={}", self.leases().display()))
            .args(options.split_whitespace())
            .stderr(log)
            .spawn()
            .expect("dnsmasq");
        self.dnsmasq = Some(Running(dnsmasq));
        self.eventually("dnsmasq listens", |lan| lan.log().contains("DHCP, IP range"));
    }

    /// The server ends and forgets everything.
    fn forget(&mut self) {
        self.dnsmasq = None;
        let _ = fs::remove_file(self.leases());
    }

    fn log(&self) -> String {
        fs::read_to_string(self.files.path().join("log")).unwrap_or_default()
    }

    fn book(&self) -> String {
        fs::read_to_string(self.leases()).unwrap_or_default()
    }

    #[track_caller]
    fn eventually(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(self) {
            assert!(Instant::now() < deadline, "not so within {PATIENCE:?}: {what}; the server said:\n{}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// One step, and all that it asks for.
    async fn feed(&mut self, input: Input<'_>) {
        let mut outputs = self.client.step(Instant::now() + self.ahead, input);
        while !outputs.is_empty() {
            let mut next = Vec::new();
            for output in outputs {
                match &output {
                    Output::Send(frame) => self.socket.send(frame).await.expect("sent"),
                    Output::Probe(address) => {
                        let input = match self.neighbour {
                            Some(mac) => Input::ProbeConflict { address: *address, mac },
                            None => Input::ProbeFree(*address),
                        };
                        next.extend(self.client.step(Instant::now() + self.ahead, input));
                    }
                    // The kernel must answer the server's ARP, else it cannot answer a renewal.
                    Output::Bound(lease) => drop(run("ip", &format!("addr replace {}/32 dev c0", lease.address))),
                    Output::Lost { lease, .. } => drop(run("ip", &format!("addr del {}/32 dev c0", lease.address))),
                    Output::Renewed(_) | Output::Report(_) => {}
                }
                self.said.push(output);
            }
            outputs = next;
        }
    }

    /// Let the client's clock jump to its deadline.
    async fn sleep(&mut self) {
        let deadline = self.client.deadline().expect("a deadline");
        self.ahead += deadline.saturating_duration_since(Instant::now() + self.ahead);
        self.feed(Input::Timer).await;
    }

    /// Hear the server until the client is there. Timers do not run meanwhile: what is expected needs no repetition.
    async fn hear_until(&mut self, state: State) {
        let mut buffer = [0; 2000];
        let deadline = Instant::now() + PATIENCE;
        while self.client.state() != state {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(length) = tokio::time::timeout(left, self.socket.recv(&mut buffer)).await else {
                panic!("still {} instead of {state}; the server said:\n{}", self.client.state(), self.log());
            };
            self.feed(Input::Frame(&buffer[..length.expect("received")])).await;
        }
    }

    async fn bind(&mut self) -> Ipv4Addr {
        self.feed(Input::Start).await;
        self.hear_until(State::Bound).await;
        self.address()
    }

    fn address(&self) -> Ipv4Addr {
        self.client.lease().expect("a lease").address
    }

    fn lost(&self) -> Vec<&LostReason> {
        let mut lost = Vec::new();
        for output in &self.said {
            if let Output::Lost { reason, .. } = output {
                lost.push(reason);
            }
        }
        lost
    }
}

const RANGE: &str = "--dhcp-range=10.77.0.100,10.77.0.110,255.255.255.0,2m";
const OTHER_RANGE: &str = "--dhcp-range=10.77.0.200,10.77.0.210,255.255.255.0,2m";

#[test]
fn a_lease_is_got_renewed_rebound_and_released() {
    on_a_lan(async |lan| {
        lan.serve(&format!("{RANGE} --dhcp-sequential-ip"));
        assert_eq!(lan.bind().await, FIRST);
        let lease = lan.client.lease().expect("a lease").clone();
        assert_eq!((lease.server_id, lease.network), (SERVER, Some("10.77.0.100/24".parse().expect("a network"))));
        lan.eventually("kube-vip's client id is in the book", |lan| lan.book().contains("10.77.0.100 web 77:65:62"));

        lan.sleep().await;
        assert_eq!(lan.client.state(), State::Renewing);
        lan.hear_until(State::Bound).await;
        assert!(lan.client.lease().expect("a lease").since > lease.since);

        while lan.client.state() != State::Rebinding {
            lan.sleep().await; // deaf to the answers
        }
        lan.hear_until(State::Bound).await;
        assert_eq!((lan.address(), lan.lost()), (FIRST, vec![]));

        lan.feed(Input::Release).await;
        lan.eventually("the lease is out of the book", |lan| !lan.book().contains("10.77.0.100"));
    });
}

#[test]
fn a_successor_comes_back_by_init_reboot() {
    on_a_lan(async |lan| {
        lan.serve(RANGE);
        let address = lan.bind().await;
        let memory = lan.client.lease().expect("a lease").remember();
        lan.client = Client::new(Config { remembered: Some(memory), ..config() }, Instant::now(), 2).expect("good");
        lan.feed(Input::Start).await;
        assert_eq!((lan.address(), lan.client.state()), (address, State::Rebooting), "in use at once");
        lan.hear_until(State::Bound).await;
        assert!(matches!(lan.said.last(), Some(Output::Renewed(lease)) if lease.address == address));
    });
}

#[test]
fn a_nak_moves_us_to_what_the_server_has_now() {
    on_a_lan(async |lan| {
        lan.serve(RANGE);
        lan.bind().await;
        lan.forget();
        lan.serve(&format!("{OTHER_RANGE} --dhcp-authoritative"));
        lan.sleep().await;
        assert_eq!(lan.client.state(), State::Renewing);
        lan.hear_until(State::Selecting).await;
        assert!(matches!(lan.lost()[..], [LostReason::Nak { server: SERVER, .. }]), "{:?}", lan.lost());
        lan.hear_until(State::Bound).await;
        assert!(lan.address().octets()[3] >= 200, "{}", lan.address());
    });
}

#[test]
fn a_server_that_lost_its_book_and_keeps_silent_about_it_does_not_cost_the_address() {
    on_a_lan(async |lan| {
        lan.serve(RANGE);
        let address = lan.bind().await;
        lan.forget();
        lan.serve(RANGE);
        lan.feed(Input::Restart).await;
        lan.sleep().await;
        lan.sleep().await;
        lan.hear_until(State::Bound).await;
        assert_eq!((lan.address(), lan.lost()), (address, vec![]));
    });
}

#[test]
fn a_declined_address_is_not_given_again() {
    on_a_lan(async |lan| {
        lan.serve(&format!("{RANGE} --dhcp-sequential-ip"));
        lan.neighbour = Some(Mac::from([2, 0, 0, 0, 0, 9]));
        lan.feed(Input::Start).await;
        lan.hear_until(State::Declined).await;
        lan.eventually("the server has heard it", |lan| lan.log().contains("DHCPDECLINE(s0) 10.77.0.100"));
        lan.neighbour = None;
        lan.sleep().await;
        lan.hear_until(State::Bound).await;
        assert_ne!(lan.address(), FIRST);
    });
}
