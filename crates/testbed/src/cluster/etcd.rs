//! etcd: one member beside the API server, or several on machines of their own that can be lost.

use parking_lot::Mutex;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::addresses::{CONTROL_PLANE, MANAGEMENT_PREFIX, etcd_member};
use crate::net::namespace::Namespace;
use crate::net::segment::{Nic, Segment};
use crate::process::Process;
use crate::programs;
use crate::run_dir::RunDir;
use crate::wait::wait_until;

/// All members.
#[derive(Debug)]
pub(crate) struct Etcd(Vec<Member>);

#[derive(Debug)]
struct Member {
    process: Mutex<Option<Process>>,
    name: String,
    address: Ipv4Addr,
    /// `name=URL` of all, as each of them wants it.
    cluster: String,
    namespace: Arc<Namespace>,
    /// Absent: it shares the API server's.
    nic: Option<Arc<Nic>>,
    dir: Arc<RunDir>,
}

impl Etcd {
    /// A single one in the namespace of the API server.
    pub fn beside(namespace: &Arc<Namespace>, dir: &Arc<RunDir>) -> Result<Self> {
        let member = Member {
            process: Mutex::default(),
            name: "etcd".into(),
            address: CONTROL_PLANE,
            cluster: format!("etcd=http://{CONTROL_PLANE}:2380"),
            namespace: Arc::clone(namespace),
            nic: None,
            dir: Arc::clone(dir),
        };
        member.start()?;
        Ok(Self(vec![member]))
    }

    /// So many, each in a namespace of its own on the management network.
    pub fn apart(count: u8, management: &Arc<Segment>, dir: &Arc<RunDir>) -> Result<Self> {
        let url = |n| format!("etcd{n}=http://{}:2380", etcd_member(n));
        let cluster = (1..=count).map(url).collect::<Vec<_>>().join(",");
        let member = |n| {
            let name = format!("etcd{n}");
            let namespace = Arc::new(Namespace::new(&name, dir)?);
            let address = etcd_member(n);
            let nic = management.attach(&namespace, "mgmt0", &[format!("{address}/{MANAGEMENT_PREFIX}")])?;
            let (process, cluster, dir) = (Mutex::default(), cluster.clone(), Arc::clone(dir));
            let member = Member { process, name, address, cluster, namespace, nic: Some(nic), dir };
            member.start()?;
            Ok(member)
        };
        Ok(Self((1..=count).map(member).collect::<Result<_>>()?))
    }

    /// For `--etcd-servers`.
    pub fn urls(&self) -> String {
        self.0.iter().map(Member::url).collect::<Vec<_>>().join(",")
    }

    /// Of one member, counted from 1.
    pub fn url_of(&self, n: usize) -> String {
        self.0[n - 1].url()
    }

    /// Address and namespace of the machine of a member, counted from 1.
    pub fn machine_of(&self, n: usize) -> (Ipv4Addr, Arc<Namespace>) {
        let member = &self.0[n - 1];
        (member.address, Arc::clone(&member.namespace))
    }

    /// Fails with the end of its log if one does not run.
    pub fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(|member| match &*member.slot() {
            Some(process) => process.check(),
            None => Ok(()),
        })
    }

    /// The member that leads, counted from 1.
    pub fn leader(&self) -> Result<usize> {
        let leads = |member: &Member| {
            let status = member.status().ok()?;
            (status["leader"].is_string() && status["leader"] == status["header"]["member_id"]).then_some(())
        };
        wait_until("a member of etcd to lead", Duration::from_secs(20), || {
            let found = self.0.iter().position(|member| leads(member).is_some());
            found.map(|index| index + 1).ok_or_else(|| "none says so".to_owned())
        })
    }

    /// Power loss of one: its cable is out and it is dead.
    pub fn cut(&self, n: usize) -> Result<()> {
        let member = &self.0[n - 1];
        member.nic.as_ref().context("this member has no cable of its own")?.cut()?;
        drop(member.slot().take());
        Ok(())
    }

    /// All keys below a prefix, with their values, as etcd itself writes them down.
    pub fn read(&self, prefix: &str) -> Result<Vec<Value>> {
        let answer = self.0[0].ask("kv/range", &below(prefix))?;
        Ok(answer["kvs"].as_array().cloned().unwrap_or_default())
    }

    /// These keys below a prefix, and no others.
    pub fn write(&self, prefix: &str, pairs: &[Value]) -> Result<()> {
        self.0[0].ask("kv/deleterange", &below(prefix))?;
        // A transaction takes 128 operations, and a request 1.5 MB.
        for some in pairs.chunks(20) {
            let puts = some.iter().map(|pair| json!({"requestPut": {"key": pair["key"], "value": pair["value"]}}));
            self.0[0].ask("kv/txn", &json!({"success": puts.collect::<Vec<_>>()}))?;
        }
        Ok(())
    }

    /// It comes back with all that it had written, and follows.
    pub fn mend(&self, n: usize) -> Result<()> {
        let member = &self.0[n - 1];
        member.nic.as_ref().context("this member has no cable of its own")?.plug()?;
        member.start()?;
        wait_until("the member of etcd to follow again", Duration::from_mins(1), || {
            let status = member.status().map_err(|error| format!("{error:#}"))?;
            let leader = status["leader"].as_str().is_some_and(|leader| leader != "0");
            if leader { Ok(()) } else { Err(status.to_string()) }
        })
    }
}

/// The range of all keys that begin so.
fn below(prefix: &str) -> Value {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    json!({"key": STANDARD.encode(prefix), "range_end": STANDARD.encode(end)})
}

/// These keys below another prefix.
pub(crate) fn renamed(pairs: &[Value], from: &str, to: &str) -> Result<Vec<Value>> {
    let renamed = |pair: &Value| {
        let key = STANDARD.decode(pair["key"].as_str().unwrap_or_default()).context("etcd writes keys in base64")?;
        let rest = key.strip_prefix(from.as_bytes()).context("a key of another prefix")?;
        let key = [to.as_bytes(), rest].concat();
        Ok(json!({"key": STANDARD.encode(key), "value": pair["value"]}))
    };
    pairs.iter().map(renamed).collect()
}

impl Member {
    fn url(&self) -> String {
        format!("http://{}:2379", self.address)
    }

    fn start(&self) -> Result<()> {
        let peer = format!("http://{}:2380", self.address);
        let mut command = Command::new(programs::tool("etcd")?);
        let (variable, value) = programs::LESS_COLLECTING;
        command
            .env(variable, value)
            .arg(format!("--data-dir={}", self.dir.path().join(&self.name).display()))
            .arg(format!("--listen-client-urls={}", self.url()))
            .arg(format!("--advertise-client-urls={}", self.url()))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster={}", self.cluster))
            .arg(format!("--name={}", self.name))
            .args(["--unsafe-no-fsync", "--log-level=warn"]);
        *self.slot() = Some(self.namespace.spawn(&self.name, command)?);
        Ok(())
    }

    /// What it says of itself.
    fn status(&self) -> Result<Value> {
        self.ask("maintenance/status", &json!({}))
    }

    fn ask(&self, what: &str, question: &Value) -> Result<Value> {
        let url = format!("{}/v3/{what}", self.url());
        let file = self.dir.write(&format!("{}-question.json", self.name), question.to_string())?;
        let data = format!("@{}", file.display());
        let answer = self.namespace.exec(["curl", "-sf", "-m", "5", "--data-binary", &data, &url])?;
        serde_json::from_str(&answer).with_context(|| format!("{} answered {answer:?}", self.name))
    }

    fn slot(&self) -> parking_lot::MutexGuard<'_, Option<Process>> {
        self.process.lock()
    }
}
