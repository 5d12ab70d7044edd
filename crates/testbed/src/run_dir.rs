//! Directories of a run, and the janitor who removes them when this process can no longer do it.

use parking_lot::Mutex;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};

/// Set to anything, it keeps logs and data of a run and says where they are.
pub const KEEP_VARIABLE: &str = "TESTBED_KEEP_LOGS";

/// Name of a process's base directory: this, its pid and a random part, below `TMPDIR`.
pub const PREFIX: &str = "hcp-testbed-";

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A directory of our own below `TMPDIR` with a `log` folder, removed with the last reference to it.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// A new directory below [`base`]; the name shows up in its path only.
    pub fn new(name: &str) -> Result<Arc<Self>> {
        let path = base()?.join(format!("{name}-{}", COUNTER.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir_all(path.join("log")).with_context(|| format!("failed to create {}", path.display()))?;
        Ok(Arc::new(Self { path }))
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the process called `name` writes.
    pub fn log(&self, name: &str) -> PathBuf {
        self.path.join("log").join(format!("{name}.log"))
    }

    /// Writes a file, and its folder if need be; others cannot read it, since most of them are keys.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf> {
        use std::os::unix::fs::OpenOptionsExt;
        let path = self.path.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).with_context(|| format!("failed to create {}", parent.display()))?;
        }
        std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(content.as_ref()))
            .with_context(|| format!("failed to write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if keep() {
            eprintln!("kept: {}", self.path.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

fn keep() -> bool {
    std::env::var_os(KEEP_VARIABLE).is_some()
}

/// The base directory of this process, made at first use.
pub fn base() -> Result<&'static Path> {
    static BASE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let base = BASE.get_or_init(|| {
        let made = tempfile::Builder::new().prefix(&format!("{PREFIX}{}-", std::process::id())).tempdir().map_err(
            |error| format!("failed to create a directory below {}: {error}", std::env::temp_dir().display()),
        )?;
        let path = made.keep();
        if !keep() {
            remove_at_the_end(Leftover::Directory(&path)).map_err(|error| format!("{error:#}"))?;
        }
        Ok(path)
    });
    base.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

/// What the janitor knows how to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftover<'a> {
    /// A directory with all its content, without crossing into another file system.
    Directory(&'a Path),
    /// A cgroup with all its descendants.
    Cgroup(&'a Path),
    /// A process, by its id. The kernel forgets to kill children that change their user or group after their start.
    Process(u32),
}

/// Removes something when this process has ended, whatever ended it.
pub fn remove_at_the_end(leftover: Leftover<'_>) -> Result<()> {
    static JANITOR: Mutex<Option<(Child, ChildStdin)>> = Mutex::new(None);
    let line = match leftover {
        Leftover::Directory(path) => format!("directory - {}", path.display()),
        Leftover::Cgroup(path) => format!("cgroup - {}", path.display()),
        Leftover::Process(pid) => match start_time(pid) {
            Some(started) => format!("process {started} /proc/{pid}"),
            None => return Ok(()), // it has ended
        },
    };
    let mut janitor = JANITOR.lock();
    if janitor.is_none() {
        // Its own process group: Ctrl-C reaches the test, and the janitor's work begins only then.
        let mut child = Command::new("sh")
            .args(["-c", JANITOR_SCRIPT])
            .process_group(0)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("failed to start the janitor (sh)")?;
        let stdin = child.stdin.take().expect("standard input was asked for as a pipe");
        *janitor = Some((child, stdin));
    }
    let (_, stdin) = janitor.as_mut().expect("it was started above");
    writeln!(stdin, "{line}").context("failed to talk to the janitor")
}

/// When a process started, in clock ticks since boot: tells it from a later one with the same id. `None` once it has
/// ended.
pub fn start_time(pid: u32) -> Option<u64> {
    start_ticks(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Field 22 of a `/proc/<pid>/stat`; `None` for what is left of a process that nobody has collected.
pub(crate) fn start_ticks(stat: &str) -> Option<u64> {
    // The program's name may contain spaces and brackets.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    if fields.first() == Some(&"Z") { None } else { fields.get(19)?.parse().ok() }
}

/// Children of the dead process get their SIGKILL at the same time, so what cannot be removed yet is tried again for 20
/// s.
const JANITOR_SCRIPT: &str = r#"
trap '' INT TERM HUP
list=$(cat)
n=0
while [ $n -lt 100 ]; do
  left=
  while read -r kind started path; do
    [ -n "$path" ] && [ -e "$path" ] || continue
    case $kind in
      process)
        now=$(sed 's/.*) //' "$path/stat" | cut -d ' ' -f 20)
        [ "$now" = "$started" ] || continue
        kill -9 "${path#/proc/}" ;;
      cgroup) find "$path" -depth -type d -exec rmdir {} + ;;
      directory) rm -rf --one-file-system "$path" ;;
    esac
    [ ! -e "$path" ] || left=1
  done <<EOF
$list
EOF
  [ -n "$left" ] || exit 0
  n=$((n + 1))
  sleep 0.2
done
"#;
