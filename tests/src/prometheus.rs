//! A real Prometheus that reads the metrics of both workloads, as an outsider with a token, with the chart's alerts,
//! and is asked what the chart's dashboard asks.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::helm::{VERSIONS, chart};
use testbed::{ControlPlane, Helm, Host, Lan, Process, programs, wait_for};

/// What a panel asks.
#[derive(Debug)]
pub struct Query {
    /// Number of the panel in the dashboard.
    pub panel: u64,
    /// Its title.
    pub title: String,
    /// PromQL, with a rate interval filled in.
    pub expression: String,
    /// Pattern of the legend.
    pub legend: String,
}

/// It runs on the LAN's client.
#[derive(Debug)]
pub struct Prometheus<'a> {
    host: &'a Host,
    process: Process,
    targets: usize,
    /// Of the dashboard.
    pub queries: Vec<Query>,
    /// How many alerts the chart has.
    pub alerts: usize,
}

impl<'a> Prometheus<'a> {
    /// Reads both workloads twice a second; `rate_interval` is what Grafana would put into the dashboard's rates.
    pub fn start(
        lan: &'a Lan,
        control_plane: &ControlPlane,
        providers: &[Ipv4Addr],
        announcers: &[Ipv4Addr],
        rate_interval: &str,
    ) -> Result<Self> {
        let reader = "--clusterrole=metrics-reader";
        for words in [
            &["create", "serviceaccount", "prometheus"][..],
            &["create", "clusterrole", "metrics-reader", "--verb=get", "--non-resource-url=/metrics"],
            &["create", "clusterrolebinding", "metrics-reader", reader, "--serviceaccount=default:prometheus"],
        ] {
            control_plane.kubectl(words)?;
        }
        let dir = lan.dir();
        let token = dir.write("prometheus/token", control_plane.kubectl(&["create", "token", "prometheus"])?)?;

        let helm = Helm::new(VERSIONS[0])?;
        let objects =
            helm.template(&chart(), &["--set", "prometheusRule.enabled=true,grafanaDashboard.enabled=true"])?;
        let find = |kind: &str| {
            objects.iter().find(|object| object["kind"] == kind).with_context(|| format!("no {kind} is rendered"))
        };
        let groups = json!({ "groups": find("PrometheusRule")?["spec"]["groups"] });
        let alerts = groups["groups"][0]["rules"].as_array().map_or(0, Vec::len);
        let rules = dir.write("prometheus/rules.json", groups.to_string())?;
        let dashboard =
            find("ConfigMap")?["data"]["harvester-cloud-provider.json"].as_str().context("the dashboard is text")?;
        let queries = queries(&serde_json::from_str(dashboard).context("the dashboard is JSON")?, rate_interval);
        ensure!(queries.len() > 20, "the dashboard has queries: {queries:?}");

        let at = |port: u16, hosts: &[Ipv4Addr]| hosts.iter().map(|host| format!("{host}:{port}")).collect::<Vec<_>>();
        let config = json!({
            "global": { "scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms" },
            "rule_files": [rules],
            "scrape_configs": [
                {
                    "job_name": "provider", "scheme": "https", "tls_config": { "insecure_skip_verify": true },
                    "authorization": { "credentials_file": token },
                    "static_configs": [{ "targets": at(10258, providers) }],
                },
                { "job_name": "announcer", "static_configs": [{ "targets": at(2112, announcers) }] },
            ],
        });
        let config = dir.write("prometheus/prometheus.yml", config.to_string())?;
        let mut command = std::process::Command::new(programs::tool("prometheus")?);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("prometheus/data").display()))
            .arg("--web.listen-address=127.0.0.1:9090");
        let process = lan.client().spawn("prometheus", command)?;
        Ok(Self { host: lan.client(), process, targets: providers.len() + announcers.len(), queries, alerts })
    }

    /// Waits until every target answers.
    pub async fn wait_until_it_reads_all(&self) -> Result<()> {
        wait_for("Prometheus to read both workloads", crate::PATIENCE, || async {
            self.process.check().map_err(|error| format!("{error:#}"))?;
            let up = self.query("sum(up)").map_err(|error| format!("{error:#}"))?;
            let up = up[0]["value"][1].as_str().unwrap_or("none");
            if up == self.targets.to_string() {
                Ok(())
            } else {
                Err(format!("{up} targets are up: {:?}", self.get("targets", &[])))
            }
        })
        .await
    }

    /// The present values.
    pub fn query(&self, expression: &str) -> Result<Value> {
        self.get("query", &[("query", expression)])
    }

    /// The values from `start` to `end`, in seconds of the epoch, every `step` seconds.
    pub fn query_range(&self, expression: &str, start: f64, end: f64, step: f64) -> Result<Value> {
        let [start, end, step] = [start, end, step].map(|number| number.to_string());
        self.get("query_range", &[("query", expression), ("start", &start), ("end", &end), ("step", &step)])
    }

    /// The rules as it has loaded them.
    pub fn rules(&self) -> Result<Vec<Value>> {
        Ok(self.get("rules", &[])?["groups"][0]["rules"].as_array().cloned().unwrap_or_default())
    }

    fn get(&self, what: &str, parameters: &[(&str, &str)]) -> Result<Value> {
        let mut words: Vec<String> = ["curl", "-sS", "-m", "5", "--noproxy", "*", "-G"].map(str::to_owned).into();
        words.push(format!("http://127.0.0.1:9090/api/v1/{what}"));
        for (name, value) in parameters {
            words.extend(["--data-urlencode".to_owned(), format!("{name}={value}")]);
        }
        let text = self.host.exec(&words)?;
        let answer: Value = serde_json::from_str(&text).with_context(|| format!("Prometheus answers {text}"))?;
        ensure!(answer["status"] == "success", "{parameters:?}: {answer}");
        let data = &answer["data"];
        Ok(data.get("result").unwrap_or(data).clone())
    }
}

fn queries(dashboard: &Value, rate_interval: &str) -> Vec<Query> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let panels = dashboard["panels"].as_array().into_iter().flatten();
    let queries = panels.flat_map(|panel| {
        panel["targets"].as_array().into_iter().flatten().map(|target| Query {
            panel: panel["id"].as_u64().unwrap_or_default(),
            title: text(&panel["title"]),
            expression: text(&target["expr"]).replace("$__rate_interval", rate_interval),
            legend: text(&target["legendFormat"]),
        })
    });
    queries.collect()
}
