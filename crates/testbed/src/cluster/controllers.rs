//! Controller manager and scheduler beside an API server.

use std::process::Command;

use anyhow::Result;

use crate::cluster::api_server::ApiServer;
use crate::process::Process;
use crate::programs;

/// The controller manager with these controllers, `*` for all.
pub(crate) fn start_controller_manager(api_server: &ApiServer, controllers: &str) -> Result<Process> {
    let credentials = api_server.user("kube-controller-manager", "system:kube-controller-manager", &[])?;
    let file = |name: &str| api_server.file(name).display().to_string();
    let mut command = Command::new(programs::tool("kube-controller-manager")?);
    command
        .arg(format!("--kubeconfig={}", credentials.inside.display()))
        .arg(format!("--controllers={controllers}"))
        .arg(format!("--service-account-private-key-file={}", file("service-accounts.key")))
        .arg(format!("--root-ca-file={}", file("ca.crt")))
        .args(["--cloud-provider=external", "--use-service-account-credentials=true", "--leader-elect=false"])
        // It makes some forty tokens at its start; at the default of 20 requests per second that takes four seconds
        // longer.
        .args(["--kube-api-qps=300", "--kube-api-burst=600", "--bind-address=127.0.0.1", "--profiling=false", "--v=1"]);
    api_server.namespace().spawn("kube-controller-manager", keep_trying(&command))
}

/// The scheduler.
pub(crate) fn start_scheduler(api_server: &ApiServer) -> Result<Process> {
    let credentials = api_server.user("kube-scheduler", "system:kube-scheduler", &[])?;
    let mut command = Command::new(programs::tool("kube-scheduler")?);
    command.arg(format!("--kubeconfig={}", credentials.inside.display())).args([
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        "--v=1",
    ]);
    api_server.namespace().spawn("kube-scheduler", keep_trying(&command))
}

/// Controller manager and scheduler end when they find no API server: started before it is up, or when it is killed for
/// a test.
fn keep_trying(command: &Command) -> Command {
    let mut wrapped = Command::new("sh");
    let (variable, value) = programs::LESS_COLLECTING;
    // A killed shell would leave its child behind: pdeathsig once more.
    wrapped
        .env(variable, value)
        .args(["-c", "while :; do setpriv --pdeathsig KILL -- \"$@\"; sleep 0.3; done", "keep-trying"])
        .arg(command.get_program())
        .args(command.get_args());
    wrapped
}
