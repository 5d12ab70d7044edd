//! A server at one end of a cable, a client at the other.

use std::env;
use std::fs;
use std::net::Ipv4Addr;
use std::panic;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use dhcp_client::{Client, Config, Input, LostReason, Mac, Output, State};
use l2::{PacketSocket, Traffic};

use crate::fresh_namespace::{leave_for_a_fresh_namespace, shell};
use crate::server::{Kind, Setup};

/// The third octet of the subnet that client and server have in the beginning.
pub const HERE: u8 = 0;
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, HERE, 1);
/// Long enough for a loaded machine; a passing test waits for events, not for this.
const PATIENCE: Duration = Duration::from_secs(20);
/// A server that has said nothing for so long has nothing to say.
const SILENCE: Duration = Duration::from_millis(500);

/// A process that ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Lan {
    pub kind: Kind,
    pub client: Client,
    /// What all steps said, except frames.
    pub said: Vec<Output>,
    /// The neighbour who uses whatever address is probed.
    pub neighbour: Option<Mac>,
    files: tempfile::TempDir,
    /// Holds the server's namespace while no server runs in it.
    keeper: Running,
    server: Option<Running>,
    socket: PacketSocket,
    /// How far the client's clock is ahead of the real one.
    ahead: Duration,
}

/// Runs a test on a thread of its own, in a fresh namespace.
pub fn on_a_lan<T: AsyncFnOnce(&mut Lan) + Send + 'static>(kind: Kind, test: T) {
    let missing = if rustix::process::geteuid().is_root() { kind.missing() } else { Some("this is not root".into()) };
    if let Some(missing) = missing {
        assert!(env::var_os("HCP_REQUIRE_ROOT").is_none_or(|value| value != "1"), "HCP_REQUIRE_ROOT=1, but {missing}");
        eprintln!("SKIPPED: {missing}");
        return;
    }
    let outcome = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut lan = Lan::new(kind);
            test(&mut lan).await;
        });
    })
    .join();
    if let Err(panic) = outcome {
        panic::resume_unwind(panic);
    }
}

pub fn config() -> Config {
    Config { hostname: Some("web".into()), ..Config::new(Mac::from([0, 0, 0x6c, 1, 2, 3])) }
}

impl Lan {
    fn new(kind: Kind) -> Self {
        let keeper = thread::spawn(|| {
            leave_for_a_fresh_namespace();
            Running(Command::new("sleep").arg("600").spawn().expect("sleep"))
        })
        .join()
        .expect("a namespace for the server");
        leave_for_a_fresh_namespace();
        let mac = config().mac;
        shell("ip", &format!("link add c0 address {mac} type veth peer name s0 netns {}", keeper.0.id()));
        shell("ip", "link set c0 up");
        let index = shell("ip", "-o link show c0").split(':').next().and_then(|text| text.trim().parse().ok());
        let socket = PacketSocket::open(index.expect("ip shows an index"), Traffic::DhcpClient).expect("packet socket");
        let client = Client::new(config(), Instant::now(), 1).expect("a good configuration");
        let files = tempfile::tempdir().expect("a directory");
        let (server, said, neighbour) = (None, vec![], None);
        let lan = Self { kind, files, keeper, server, socket, client, ahead: Duration::ZERO, said, neighbour };
        lan.at_server("ip", "link set lo up");
        lan.at_server("ip", "link set s0 up");
        lan.move_server(HERE);
        lan
    }

    fn at_server(&self, program: &str, arguments: &str) {
        shell("nsenter", &format!("--net=/proc/{}/ns/net {program} {arguments}", self.keeper.0.id()));
    }

    /// The server has one address, in this subnet.
    pub fn move_server(&self, subnet: u8) {
        self.at_server("ip", "addr flush dev s0");
        self.at_server("ip", &format!("addr add 10.77.{subnet}.1/24 dev s0"));
    }

    pub fn serve(&mut self, setup: Setup) {
        let files = self.files.path();
        let log = || fs::File::options().create(true).append(true).open(files.join("log")).expect("a log");
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.keeper.0.id())).args(self.kind.command(files, setup));
        self.kind.environment(files, &mut command);
        let before = self.log().matches(self.kind.ready()).count();
        self.server = Some(Running(command.stdout(log()).stderr(log()).spawn().expect("the server")));
        self.eventually("it serves", |lan| lan.log().matches(lan.kind.ready()).count() > before);
    }

    /// The server ends and forgets everything.
    pub fn forget(&mut self) {
        self.server = None;
        let _ = fs::remove_file(Kind::book(self.files.path()));
    }

    /// Another client, or another life of this one.
    pub fn client_is(&mut self, config: Config) {
        shell("ip", "addr flush dev c0");
        shell("ip", &format!("link set c0 address {}", config.mac));
        self.client = Client::new(config, Instant::now() + self.ahead, 2).expect("a good configuration");
    }

    fn log(&self) -> String {
        fs::read_to_string(self.files.path().join("log")).unwrap_or_default()
    }

    /// The last words of the server.
    fn words(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().filter(|line| !line.contains("COMMAND_")).collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    pub fn book(&self) -> String {
        fs::read_to_string(Kind::book(self.files.path())).unwrap_or_default()
    }

    #[track_caller]
    pub fn eventually(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(self) {
            assert!(
                Instant::now() < deadline,
                "not so within {PATIENCE:?}: {what}; the server said:\n{}",
                self.words()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// One step, and all that it asks for.
    pub async fn feed(&mut self, input: Input<'_>) {
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
                    Output::Bound(lease) => drop(shell("ip", &format!("addr replace {}/32 dev c0", lease.address))),
                    Output::Lost { lease, .. } => drop(shell("ip", &format!("addr del {}/32 dev c0", lease.address))),
                    Output::Renewed(_) | Output::Report(_) => {}
                }
                self.said.push(output);
            }
            outputs = next;
        }
    }

    /// Let the client's clock jump to its deadline.
    pub async fn sleep(&mut self) {
        let deadline = self.client.deadline().expect("a deadline");
        self.ahead += deadline.saturating_duration_since(Instant::now() + self.ahead);
        self.feed(Input::Timer).await;
    }

    /// Whether a frame came within this time.
    async fn hear(&mut self, patience: Duration) -> bool {
        let mut buffer = [0; 2000];
        let Ok(length) = tokio::time::timeout(patience, self.socket.recv(&mut buffer)).await else { return false };
        self.feed(Input::Frame(&buffer[..length.expect("received")])).await;
        true
    }

    /// Hear the server until the client is there. Timers do not run meanwhile: what is expected needs no repetition.
    pub async fn hear_until(&mut self, state: State) {
        let deadline = Instant::now() + PATIENCE;
        while self.client.state() != state {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(self.hear(left).await, "{} instead of {state}; the server:\n{}", self.client.state(), self.words());
        }
    }

    /// Hear the server, and let time pass where it is silent, until the client is content.
    pub async fn go_on_until(&mut self, what: &str, condition: impl Fn(&Client) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(&self.client) {
            assert!(Instant::now() < deadline, "{what}: {}; the server said:\n{}", self.client.state(), self.words());
            if !self.hear(SILENCE).await {
                self.sleep().await;
            }
        }
    }

    /// A lease, which may take more than one question: some listen a moment after they have said that they do.
    pub async fn bind(&mut self) -> Ipv4Addr {
        self.feed(Input::Start).await;
        self.go_on_until("a lease", |client| client.state() == State::Bound).await;
        self.address()
    }

    pub fn address(&self) -> Ipv4Addr {
        self.client.lease().expect("a lease").address
    }

    pub fn lost(&self) -> Vec<&LostReason> {
        let mut lost = Vec::new();
        for output in &self.said {
            if let Output::Lost { reason, .. } = output {
                lost.push(reason);
            }
        }
        lost
    }
}
