//! A real Prometheus reads the metrics of both workloads, as an outsider with a token, and is asked what the dashboard asks.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::helm::chart;
use testbed::{Helm, Process, programs, wait_for};

use crate::cluster::Cluster;

/// Panels that are empty while all is well.
const EMPTY_WHEN_WELL: [&str; 1] = ["What Services wait for"];

pub struct Monitoring<'a> {
    cluster: &'a Cluster,
    _process: Process,
    rules: usize,
    panels: Vec<(String, String)>,
}

impl<'a> Monitoring<'a> {
    pub fn start(cluster: &'a Cluster, helm: &Helm) -> Result<Self> {
        for words in [
            &["create", "serviceaccount", "prometheus"][..],
            &["create", "clusterrole", "metrics-reader", "--verb=get", "--non-resource-url=/metrics"],
            &[
                "create",
                "clusterrolebinding",
                "metrics-reader",
                "--clusterrole=metrics-reader",
                "--serviceaccount=default:prometheus",
            ],
        ] {
            cluster.kubectl(words);
        }
        let dir = cluster.lan.dir();
        let token = dir.write("prometheus/token", cluster.kubectl(&["create", "token", "prometheus"]))?;

        let objects =
            helm.template(&chart(), &["--set", "prometheusRule.enabled=true,grafanaDashboard.enabled=true"])?;
        let find = |kind: &str| {
            objects.iter().find(|object| object["kind"] == kind).with_context(|| format!("no {kind} is rendered"))
        };
        let groups = json!({ "groups": find("PrometheusRule")?["spec"]["groups"] });
        let rules = groups["groups"][0]["rules"].as_array().map_or(0, Vec::len);
        let rules_file = dir.write("prometheus/rules.json", groups.to_string())?;
        let dashboard =
            find("ConfigMap")?["data"]["harvester-cloud-provider.json"].as_str().context("the dashboard is text")?;
        let dashboard: Value = serde_json::from_str(dashboard).context("the dashboard is JSON")?;
        let panels = dashboard["panels"].as_array().into_iter().flatten().flat_map(|panel| {
            let title = panel["title"].as_str().unwrap_or("?").to_owned();
            let targets = panel["targets"].as_array().cloned().unwrap_or_default();
            targets.into_iter().map(move |target| {
                (title.clone(), target["expr"].as_str().unwrap_or_default().replace("$__rate_interval", "10s"))
            })
        });

        let config = json!({
            "global": { "scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms" },
            "rule_files": [rules_file],
            "scrape_configs": [
                {
                    "job_name": "provider", "scheme": "https", "tls_config": { "insecure_skip_verify": true },
                    "authorization": { "credentials_file": token },
                    "static_configs": [{ "targets": [format!("{}:10258", cluster.node())] }],
                },
                { "job_name": "announcer", "static_configs": [{ "targets": [format!("{}:2112", cluster.node())] }] },
            ],
        });
        let config = dir.write("prometheus/prometheus.yml", config.to_string())?;
        let mut command = std::process::Command::new(programs::tool("prometheus")?);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("prometheus/data").display()))
            .arg("--web.listen-address=127.0.0.1:9090");
        let panels: Vec<_> = panels.collect();
        ensure!(panels.len() > 10, "the dashboard has queries: {panels:?}");
        let process = cluster.lan.client().spawn("prometheus", command)?;
        Ok(Self { cluster, _process: process, rules, panels })
    }

    pub async fn check(&self) -> Result<()> {
        let up = || async {
            let up = self.query("sum(up)").map_err(|error| format!("{error:#}"))?;
            let value = up[0]["value"][1].as_str().unwrap_or("none").to_owned();
            if value == "2" { Ok(()) } else { Err(format!("{value} targets are up: {:?}", self.get("targets"))) }
        };
        wait_for("Prometheus to read both workloads", Duration::from_secs(30), up).await?;
        let all = || async {
            let mut empty = Vec::new();
            for (title, query) in &self.panels {
                let found = self.query(query).map_err(|error| format!("panel {title:?}: {error:#}"))?;
                if found.as_array().is_none_or(Vec::is_empty) && !EMPTY_WHEN_WELL.contains(&title.as_str()) {
                    empty.push(format!("{title}: {query}"));
                }
            }
            if empty.is_empty() { Ok(()) } else { Err(format!("no data for {empty:?}")) }
        };
        wait_for("data for every panel", Duration::from_secs(30), all).await?;
        let rules = self.get("rules")?;
        let rules = rules["data"]["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
        ensure!(rules.len() == self.rules, "{} of {} rules are loaded", rules.len(), self.rules);
        for rule in rules {
            ensure!(rule["health"] == "ok" && rule["state"] == "inactive", "{rule}");
        }
        Ok(())
    }

    fn query(&self, query: &str) -> Result<Value> {
        let url = "http://127.0.0.1:9090/api/v1/query";
        let text = self.cluster.lan.client().exec([
            "curl",
            "-sS",
            "-m",
            "5",
            "--noproxy",
            "*",
            url,
            "--data-urlencode",
            &format!("query={query}"),
        ])?;
        let answer: Value = serde_json::from_str(&text).with_context(|| format!("Prometheus answers {text}"))?;
        ensure!(answer["status"] == "success", "{query}: {answer}");
        Ok(answer["data"]["result"].clone())
    }

    fn get(&self, what: &str) -> Result<Value> {
        let url = format!("http://127.0.0.1:9090/api/v1/{what}");
        let text = self.cluster.lan.client().exec(["curl", "-sS", "-m", "5", "--noproxy", "*", &url])?;
        serde_json::from_str(&text).with_context(|| format!("Prometheus answers {text}"))
    }
}
