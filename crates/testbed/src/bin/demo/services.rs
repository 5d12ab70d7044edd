//! Step 4, first half: Services get addresses that answer.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Event, Service};
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::json;
use testbed::{AuditMark, ProbeOptions, Traffic, echo, wait_for};

use crate::bed::{Bed, NODES, PATIENCE, WEB_IMAGE};
use crate::report::{Figures, Sample, Series, Writes};
use crate::step_log::{self, StepLog};

/// Annotation: where the address comes from.
const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
/// Annotation: share the address of this Service.
const PRIMARY: &str = "cloudprovider.harvesterhci.io/primary-service";
/// How many Services are measured in each mode.
const MEASURED: u32 = 5;

/// The addresses of the demo's Services.
#[derive(Debug, Clone, Copy)]
pub struct Vips {
    /// From the pool.
    pub pool: Ipv4Addr,
    /// By DHCP.
    pub dhcp: Ipv4Addr,
}

/// A Deployment, exposed in three ways.
pub async fn expose(step_log: &mut StepLog, bed: &Bed) -> Result<Vips> {
    step_log.step("web", deploy_web(bed)).await?;

    step_log::command("kubectl expose deployment web --type LoadBalancer --port 80 --target-port 8080");
    let pool = step_log
        .step("pool", async {
            let begin = Instant::now();
            bed.kubectl(&[
                "expose",
                "deployment",
                "web",
                "--type",
                "LoadBalancer",
                "--port",
                "80",
                "--target-port",
                "8080",
            ])
            .await?;
            let vip = address_of(bed, "web").await?;
            let told = begin.elapsed();
            let answer = first_answer(bed, vip, 80).await?;
            ensure!(in_range(vip, 100, 149), "{vip} is not from the pool .100-.149");
            Ok((
                vip,
                format!(
                    "pool: {vip} after {} ms, first reply after {} ms: {answer}",
                    told.as_millis(),
                    begin.elapsed().as_millis()
                ),
            ))
        })
        .await?;

    step_log::command(&format!("kubectl create -f web-dhcp.yaml    # annotation {IPAM}: dhcp"));
    let dhcp = step_log
        .step("dhcp", async {
            let begin = Instant::now();
            create(bed, "web-dhcp", 80, &[(IPAM, "dhcp")]).await?;
            let vip = address_of(bed, "web-dhcp").await?;
            let told = begin.elapsed();
            let answer = first_answer(bed, vip, 80).await?;
            ensure!(in_range(vip, 200, 239), "{vip} is not from the DHCP range .200-.239");
            let leases = bed.lan.dhcp().leases()?;
            let lease = leases
                .iter()
                .find(|lease| lease.address == vip)
                .with_context(|| format!("the DHCP server knows no lease for {vip}"))?;
            let text = format!(
                "DHCP: {vip} after {} ms, first reply after {} ms: {answer}; lease of MAC {}",
                told.as_millis(),
                begin.elapsed().as_millis(),
                lease.mac
            );
            Ok((vip, text))
        })
        .await?;

    step_log::command(&format!("kubectl create -f web-shared.yaml  # annotation {PRIMARY}: default/web, port 8081"));
    step_log
        .step("share", async {
            create(bed, "web-shared", 8081, &[(PRIMARY, "default/web")]).await?;
            let vip = address_of(bed, "web-shared").await?;
            ensure!(vip == pool, "it got {vip}, not its primary's {pool}");
            let second = first_answer(bed, vip, 8081).await?;
            let first = first_answer(bed, vip, 80).await?;
            Ok(((), format!("shared: {vip}:8081 answers ({second}) and {vip}:80 still does ({first})")))
        })
        .await?;

    let services = bed.kubectl(&["get", "services", "-o", "wide"]).await?;
    for line in services.lines() {
        step_log.tell(&format!("         {line}"));
    }
    Ok(Vips { pool, dhcp })
}

/// New Services in a row in both modes, for the figures.
pub async fn measure(step_log: &mut StepLog, bed: &Bed, figures: &mut Figures) -> Result<()> {
    let guest = bed.control_plane.audit().mark();
    let host = bed.harvester.audit().mark();
    let pool = step_log.step("measure-pool", series(bed, "pool", &[])).await?;
    last_writes(bed, "pool", host).await?;
    let guest = bed.control_plane.audit().since(guest)?;
    let host = bed.harvester.audit().since(host)?;
    figures.writes_per_service.insert("ccm on guest", Writes::of(&guest, ":harvester-cloud-provider", MEASURED));
    figures.writes_per_service.insert("announcer on guest", Writes::of(&guest, ":kube-vip", MEASURED));
    figures
        .writes_per_service
        .insert("ccm on harvester", Writes::of(&host, &format!(":{}", crate::bed::CLUSTER), MEASURED));
    figures.pool = Some(pool);
    figures.dhcp = Some(step_log.step("measure-dhcp", series(bed, "dhcp", &[(IPAM, "dhcp")])).await?);
    Ok(())
}

/// Waits for what the CCM writes when a Service is served already: the Event about it, and its address into the object
/// on Harvester. The announcer's last write is the status, which everybody has waited for.
async fn last_writes(bed: &Bed, mode: &str, host: AuditMark) -> Result<()> {
    let events: Api<Event> = Api::namespaced(bed.services().into_client(), "default");
    let ensured = ListParams::default().fields("reason=EnsuredLoadBalancer");
    let names: Vec<String> = (1..=MEASURED).map(|n| format!("{mode}-{n}")).collect();
    wait_for("the last writes of the CCM", PATIENCE, || async {
        let told = events.list(&ensured).await.map_err(|error| error.to_string())?;
        let silent = names
            .iter()
            .find(|name| !told.iter().any(|event| event.involved_object.name.as_deref() == Some(name.as_str())));
        if let Some(name) = silent {
            return Err(format!("no Event EnsuredLoadBalancer for Service {name}"));
        }
        let requests = bed.harvester.audit().since(host).map_err(|error| format!("{error:#}"))?;
        let updated: BTreeSet<&str> = requests
            .iter()
            .filter(|request| request.resource == "loadbalancers" && request.verb == "update" && request.code == 200)
            .filter(|request| request.user.ends_with(&format!(":{}", crate::bed::CLUSTER)))
            .filter_map(|request| request.name.as_deref())
            .collect();
        if updated.len() >= names.len() { Ok(()) } else { Err(format!("LoadBalancers updated: {updated:?}")) }
    })
    .await
}

async fn series(bed: &Bed, mode: &str, annotations: &[(&str, &str)]) -> Result<(Series, String)> {
    let mut samples = Vec::new();
    for n in 1..=MEASURED {
        let name = format!("{mode}-{n}");
        let begin = Instant::now();
        create(bed, &name, 80, annotations).await?;
        let vip = address_of(bed, &name).await?;
        let address_ms = millis(begin.elapsed());
        first_answer(bed, vip, 80).await?;
        samples.push(Sample { address_ms, reply_ms: millis(begin.elapsed()) });
    }
    let series = Series::new(samples).context("no samples")?;
    let text = format!(
        "{MEASURED} Services in {mode} mode: median {} ms to the address, {} ms to the first reply",
        series.median_address_ms, series.median_reply_ms
    );
    Ok((series, text))
}

async fn deploy_web(bed: &Bed) -> Result<((), String)> {
    let labels = json!({ "app": "web" });
    let manifest = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": "web" },
        "spec": {
            "replicas": NODES,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    // One on each node, so that every node has an endpoint when another is lost.
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": { "matchLabels": labels },
                    }],
                    "containers": [{
                        "name": "web",
                        "image": WEB_IMAGE,
                        "env": [{ "name": "NODE_NAME", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }],
                        "ports": [{ "containerPort": 8080 }],
                        "readinessProbe": { "httpGet": { "path": "/", "port": 8080 }, "periodSeconds": 1 },
                        "securityContext": { "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                            "capabilities": { "drop": ["ALL"] } },
                    }],
                },
            },
        },
    });
    let file = bed.control_plane.dir().write("web.json", manifest.to_string())?;
    bed.kubectl(&["apply", "-f", &file.display().to_string()]).await?;
    bed.pods_ready("default", "app=web", NODES.into()).await?;
    Ok(((), format!("Deployment web: {NODES} pods that answer HTTP, one per node")))
}

async fn create(bed: &Bed, name: &str, port: u16, annotations: &[(&str, &str)]) -> Result<()> {
    let annotations: serde_json::Map<String, serde_json::Value> =
        annotations.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let service: Service = serde_json::from_value(json!({
        "metadata": { "name": name, "annotations": annotations },
        "spec": { "type": "LoadBalancer", "selector": { "app": "web" },
            "ports": [{ "port": port, "targetPort": 8080 }] },
    }))
    .context("failed to make a Service")?;
    bed.services()
        .create(&PostParams::default(), &service)
        .await
        .with_context(|| format!("failed to create Service {name}"))?;
    Ok(())
}

/// Waits for the address in the status; the API server tells, nobody polls.
async fn address_of(bed: &Bed, name: &str) -> Result<Ipv4Addr> {
    let services: Api<Service> = bed.services();
    let has_address = |service: Option<&Service>| service.is_some_and(|service| ingress(service).is_some());
    let Ok(found) = tokio::time::timeout(PATIENCE, await_condition(services.clone(), name, has_address)).await else {
        let now = services.get(name).await.with_context(|| format!("failed to read Service {name}"))?;
        let events = bed.kubectl(&["events", "--for", &format!("service/{name}")]).await.unwrap_or_default();
        let waited = PATIENCE.as_secs();
        bail!("Service {name} has no address after {waited} s; annotations {:?}; Events:\n{events}", now.annotations())
    };
    let service = found.with_context(|| format!("failed to watch Service {name}"))?;
    let service = service.with_context(|| format!("Service {name} was deleted"))?;
    ingress(&service).with_context(|| format!("Service {name} has no IPv4 address in its status"))
}

fn ingress(service: &Service) -> Option<Ipv4Addr> {
    service.status.as_ref()?.load_balancer.as_ref()?.ingress.as_ref()?.first()?.ip.as_ref()?.parse().ok()
}

/// Asks from the client host every 10 ms until there is an answer.
async fn first_answer(bed: &Bed, vip: Ipv4Addr, port: u16) -> Result<String> {
    let probe = bed.lan.client().probe_with(Traffic::Http(SocketAddr::from((vip, port))), ProbeOptions::default())?;
    let report = wait_for(&format!("{vip}:{port} to answer the client"), PATIENCE, || async {
        let report = probe.report();
        if report.answered > 0 { Ok(report) } else { Err(report.to_string()) }
    })
    .await?;
    let answer = report.last_answer.unwrap_or_default();
    ensure!(
        echo::field(&answer, "pod").is_some_and(|pod| pod.starts_with("web-")),
        "{vip}:{port} answered {answer:?}, which is none of our pods"
    );
    Ok(answer)
}

fn in_range(vip: Ipv4Addr, first: u8, last: u8) -> bool {
    (first..=last).contains(&vip.octets()[3])
}

/// Whole milliseconds.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
