//! Container images without a registry: built by buildah, kept as archives that machines import.

use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::process::{mortal, run};
use crate::run_dir::RunDir;

/// Builds images and keeps their archives.
#[derive(Debug)]
pub struct ImageStore {
    dir: Arc<RunDir>,
    archives: Mutex<Vec<PathBuf>>,
}

/// The sandbox process: sleeps, collects orphans of a shared pid namespace, leaves on SIGTERM.
const PAUSE_C: &str = r"#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signal) { (void)signal; _exit(0); }
static void collect(int signal) { (void)signal; while (waitpid(-1, 0, WNOHANG) > 0) {} }

int main(void) {
  signal(SIGINT, leave);
  signal(SIGTERM, leave);
  signal(SIGCHLD, collect);
  for (;;) pause();
}
";

impl ImageStore {
    /// An empty store.
    pub fn new() -> Result<Self> {
        Ok(Self { dir: RunDir::new("images")?, archives: Mutex::default() })
    }

    /// Archives of all images built so far.
    pub fn archives(&self) -> Vec<PathBuf> {
        self.archives.lock().clone()
    }

    /// Builds `localhost/pause:1`, which every machine needs.
    pub fn build_pause(&self) -> Result<PathBuf> {
        let context = self.context("pause")?;
        let source = self.dir.write("pause/pause.c", PAUSE_C)?;
        run(Command::new("gcc").args(["-static", "-Os", "-s", "-o"]).arg(context.join("pause")).arg(source))?;
        self.build(
            super::config::PAUSE_IMAGE,
            "FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT [\"/pause\"]\n",
            &context,
        )
    }

    /// Builds `name` around one program of this machine and the libraries it needs, if it is not static.
    pub fn build_program(&self, name: &str, program: &Path) -> Result<PathBuf> {
        let file = program
            .file_name()
            .with_context(|| format!("{} is no program", program.display()))?
            .to_string_lossy()
            .into_owned();
        let context = self.context(&file)?;
        install(program, &context.join("root"), &format!("usr/bin/{file}"))?;
        let dockerfile = format!("FROM scratch\nCOPY root/ /\nUSER 65532:65532\nENTRYPOINT [\"/usr/bin/{file}\"]\n");
        self.build(name, &dockerfile, &context)
    }

    /// Builds `name` by `dockerfile` in `context` and returns its archive.
    pub fn build(&self, name: &str, dockerfile: &str, context: &Path) -> Result<PathBuf> {
        let short = name.replace(['/', ':'], "_");
        let file = self.dir.write(&format!("{short}.Dockerfile"), dockerfile)?;
        let archive = self.dir.path().join(format!("{short}.tar"));
        let _ = std::fs::remove_file(&archive);
        // A store per image: buildah locks its store, and images are built side by side.
        let buildah = || {
            let mut command = Command::new("buildah");
            let store = self.dir.path().join(format!("store-{short}"));
            command
                .args(["--storage-driver", "vfs", "--root"])
                .arg(store.join("root"))
                .arg("--runroot")
                .arg(store.join("run"));
            command
        };
        let mut build = buildah();
        build
            .args(["bud", "--isolation", "chroot", "--pull-never", "-q", "-f"])
            .arg(&file)
            .args(["-t", name])
            .arg(context);
        run(&mut mortal(&build)).with_context(|| format!("failed to build image {name}"))?;
        let mut push = buildah();
        push.args(["push", "-q", name]).arg(format!("docker-archive:{}:{name}", archive.display()));
        run(&mut mortal(&push)).with_context(|| format!("failed to write image {name} to {}", archive.display()))?;
        let _ = std::fs::remove_dir_all(self.dir.path().join(format!("store-{short}")));
        self.archives.lock().push(archive.clone());
        Ok(archive)
    }

    /// An empty directory to put files for a build into.
    pub fn context(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(&path).with_context(|| format!("failed to create {}", path.display()))?;
        Ok(path)
    }
}

/// Copies a file together with its mode.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to).with_context(|| format!("failed to copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Copies a program to `target` below `root`, with the libraries it needs where the loader looks for them.
pub fn install(program: &Path, root: &Path, target: &str) -> Result<()> {
    let libraries = libraries(program).into_iter().map(|library| (library.clone(), library));
    for (from, to) in libraries.chain([(program.to_owned(), PathBuf::from(target))]) {
        let to = root.join(to.strip_prefix("/").unwrap_or(&to));
        std::fs::create_dir_all(to.parent().expect("it lies below the root"))
            .with_context(|| format!("failed to create a directory for {}", to.display()))?;
        copy(&from, &to)?;
    }
    Ok(())
}

/// The libraries that the dynamic loader would map, the loader included; none for a static program.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let Ok(output) = Command::new("ldd").arg(program).output() else { return Vec::new() };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from))
        .filter(|path| path != program)
        .collect()
}
