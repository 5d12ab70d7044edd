//! `plan`: shows what the cloud controller manager with these flags would write to this cluster in its present state.
//! It writes nothing: its clients refuse requests that could change anything.

use std::process::ExitCode;

use announcer_core::status::table::table;
use clap::{Command, FromArgMatches};
use cloud_provider::preview::{Outlook, OutlookNote, Place, Target, Write};
use cloud_provider::start::Caches;
use harvester_provider::{Connection, Foresight, HarvesterProvider, Source};
use runtime::client::Settings;
use runtime::error::chain;
use runtime::health::Health;
use runtime::metrics::Metrics;
use runtime::shutdown::Token;
use runtime::tasks::Tasks;
use serde_json::{Value, json};

use super::config::{Configuration, configure};
use super::flags::{self, Flags};
use super::run;
use crate::output::Output;
use crate::stdout::say;
use crate::{PRODUCT, entry, output};

/// Something would be written.
const WRITES: u8 = 3;
/// Exit status: the controller would write nothing, because it is paused or in safe mode.
const HELD: u8 = 4;

/// Limit for the text of a change in the table; `-o json` shows all of it.
const LONGEST_CHANGE: usize = 110;

const EXAMPLES: &str = "\
Examples:
  harvester-cloud-provider plan --cloud-config=./cloud-config --kubeconfig=./guest.yaml --cluster-name=prod
        before the Go provider is replaced: with the flags that the new Deployment is going to have
  harvester-cloud-provider plan ... -o json | jq -r '.writes[] | [.cluster, .action, .kind, .name] | @tsv'

It shows the first look at each object: the address that Harvester books for a new load balancer is published by a \
later one. Not shown are Events, Leases, and what is written while hosts are being upgraded. Nothing is written.

Exit status: 0 nothing would be written, 3 something would, 4 the controller would be held (paused, or in safe mode), \
1 a cluster cannot be read, or the controller would not start from these flags, 2 wrong usage.";

/// The command line: it has every flag of the cloud controller manager, so that the flags of a Deployment can be
/// copied.
pub fn command() -> Command {
    flags::command()
        .name("harvester-cloud-provider plan")
        .bin_name("harvester-cloud-provider plan")
        .about(
            "Shows what the cloud controller manager with these flags would write over this cluster now, and \
            writes nothing.",
        )
        .override_usage("harvester-cloud-provider plan [OPTIONS]")
        .before_help(None::<&str>)
        .after_help(EXAMPLES)
        .arg(output::flag())
}

/// Runs the command; `arguments` begin with its name.
pub fn main(arguments: &[String]) -> ExitCode {
    let parsed = command().args_override_self(true).try_get_matches_from(arguments).and_then(|matches| {
        let output = matches.get_one::<Output>("output").copied().unwrap_or_default();
        Ok((Flags::from_arg_matches(&matches)?, output))
    });
    let (flags, output) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return entry::refused(&error),
    };
    if let Some(version) = super::version_asked_for(&flags) {
        return say(&version);
    }
    match foresee(&flags) {
        Ok(found) => {
            let said = say(output.render(|| to_text(&found), &to_json(&found)).trim_end());
            match status(&found) {
                0 => said,
                status => ExitCode::from(status),
            }
        }
        Err(error) => {
            eprintln!("{}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn foresee(flags: &Flags) -> anyhow::Result<Foresight> {
    let configuration = configure(flags)?;
    for warning in configuration.warnings.iter().chain(&configuration.remarks) {
        eprintln!("{warning}");
    }
    let found = entry::run(ask(flags, &configuration))?;
    // The flag is not followed where another source has a name.
    for warning in configuration.unnamed.iter().filter(|_| found.name_source == Source::Default) {
        eprintln!("{warning}");
    }
    let given = &configuration.provider.cluster_name;
    if let Some(warning) = not_followed(given.as_str(), configuration.unnamed.is_none(), &found) {
        eprintln!("{warning}");
    }
    Ok(found)
}

/// Another source of the name wins over the flag. A mistyped name would otherwise go unnoticed.
fn not_followed(given: &str, named: bool, found: &Foresight) -> Option<String> {
    (named && given != found.cluster_name).then(|| {
        let (name, source) = (&found.cluster_name, found.name_source.words());
        format!(
            "--cluster-name={given} is not followed: this cluster is {name} on Harvester ({source}), and that name \
             stays until harvester-cloud-provider identity rename changes it. The plan is for {name}."
        )
    })
}

async fn ask(flags: &Flags, configuration: &Configuration) -> anyhow::Result<Foresight> {
    let metrics = Metrics::new(&PRODUCT);
    let (guest, _) = run::guest_client(flags, Settings::new("guest", &PRODUCT).read_only()).await?;
    let path = flags.cloud.cloud_config.clone().unwrap_or_default();
    let settings = Settings::new("harvester", &PRODUCT).read_only();
    let connection = Connection::open(&configuration.cloud_config, path, settings, false, &metrics).await?;
    let mut tasks = Tasks::new(Token::new());
    let caches = Caches::watch(&guest, &Health::new(), &mut tasks);
    let harvester = connection.client();
    let provider = metrics.register(|registry| {
        let caches = (&caches.services, &caches.nodes);
        HarvesterProvider::new(&configuration.provider, &guest, &harvester, caches, registry)
    });
    Ok(Box::pin(provider.foresee(&caches, &run::settings(flags, configuration))).await?)
}

fn status(found: &Foresight) -> u8 {
    match found {
        Foresight { held: Some(_), .. } => HELD,
        Foresight { outlook: Outlook { writes, .. }, .. } if writes.is_empty() => 0,
        Foresight { .. } => WRITES,
    }
}

fn cluster(place: Place) -> &'static str {
    match place {
        Place::Guest => "guest",
        Place::Cloud => "harvester",
    }
}

fn to_json(found: &Foresight) -> Value {
    let Outlook { writes, notes } = &found.outlook;
    let writes: Vec<Value> = writes
        .iter()
        .map(|write| {
            let Target { kind, namespace, name } = &write.target;
            json!({"cluster": cluster(write.place), "action": write.verb.word(),
                "kind": kind, "namespace": namespace, "name": name,
                "why": write.why, "body": write.body})
        })
        .collect();
    let notes: Vec<Value> = notes
        .iter()
        .map(|note| {
            let Target { kind, namespace, name } = &note.target;
            json!({"kind": kind, "namespace": namespace, "name": name, "reason": note.reason, "message": note.message,
                "needsUser": note.needs_user})
        })
        .collect();
    let held = found.held.as_ref().map(|(reason, message)| json!({"reason": reason, "message": message}));
    json!({"clusterName": found.cluster_name, "clusterNameFrom": found.name_source.word(), "held": held,
        "writes": writes, "notes": notes})
}

fn to_text(found: &Foresight) -> String {
    let Outlook { writes, notes } = &found.outlook;
    let count = match writes.len() {
        0 => "nothing would be written".to_owned(),
        1 => "1 write".to_owned(),
        count => format!("{count} writes"),
    };
    let mut parts = vec![format!("Cluster {} ({}): {count}.\n", found.cluster_name, found.name_source.words())];
    parts.extend(
        found.held.iter().map(|(reason, message)| format!("The controller would be held, {reason}: {message}\n")),
    );
    if !writes.is_empty() {
        let row = |write: &Write| {
            let change = if write.why.is_empty() { change(&write.body) } else { write.why.clone() };
            vec![cluster(write.place).to_owned(), write.verb.word().to_owned(), object(&write.target), cut(&change)]
        };
        let rows: Vec<Vec<String>> = writes.iter().map(row).collect();
        parts.push(format!("\n{}", table(&["CLUSTER", "ACTION", "OBJECT", "CHANGE"], &rows)));
    }
    if !notes.is_empty() {
        let row = |note: &OutlookNote| vec![object(&note.target), note.reason.clone(), note.message.clone()];
        let rows: Vec<Vec<String>> = notes.iter().map(row).collect();
        parts.push(format!("\nNot done, or not yet:\n{}", table(&["OBJECT", "REASON", "MESSAGE"], &rows)));
    }
    parts.concat()
}

fn object(target: &Target) -> String {
    let Target { kind, namespace, name } = target;
    if namespace.is_empty() { format!("{kind} {name}") } else { format!("{kind} {namespace}/{name}") }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST_CHANGE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The values in a patch or an object, without those that only identify it.
fn change(body: &Value) -> String {
    let mut leaves = Vec::new();
    collect("", body, &mut leaves);
    leaves.join(" ")
}

fn collect(path: &str, value: &Value, leaves: &mut Vec<String>) {
    const NAMES: [&str; 6] =
        ["apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion"];
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                collect(&if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, value, leaves);
            }
        }
        _ if NAMES.contains(&path) => {}
        value => {
            let path = ["metadata.", "spec."].iter().find_map(|prefix| path.strip_prefix(prefix)).unwrap_or(path);
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            leaves.push(format!("{path}={text}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use cloud_provider::preview::Verb;

    use super::*;

    fn found(held: Option<(&'static str, String)>) -> Foresight {
        let target = Target { kind: "Service", namespace: "default".into(), name: "web".into() };
        let body = json!({"metadata": {"uid": "u", "finalizers": ["f"], "annotations": {"a": "1"}}});
        let mut outlook = Outlook { writes: vec![Write::patch(target.clone(), body)], notes: Vec::new() };
        let lb = Target { kind: "LoadBalancer", namespace: "guests".into(), name: "prod-web".into() };
        let body = json!({"metadata": {"name": "prod-web"}, "spec": {"ipam": "pool"}});
        let why = String::new();
        outlook.writes.push(Write { place: Place::Cloud, verb: Verb::Create, target: lb, why, body });
        outlook.note(target, "Booking", "waits for Harvester".into(), false);
        Foresight { cluster_name: "prod".into(), name_source: Source::Flag, held, outlook }
    }

    #[test]
    fn a_plan_is_a_table_with_what_is_done_and_what_is_not() {
        assert_eq!(
            to_text(&found(None)),
            "Cluster prod (from --cluster-name): 2 writes.\n\n\
             CLUSTER     ACTION   OBJECT                         CHANGE\n\
             guest       update   Service default/web            annotations.a=1 finalizers=[\"f\"]\n\
             harvester   create   LoadBalancer guests/prod-web   ipam=pool\n\n\
             Not done, or not yet:\n\
             OBJECT                REASON    MESSAGE\n\
             Service default/web   Booking   waits for Harvester\n"
        );
        let nothing = Foresight { outlook: Outlook::default(), ..found(None) };
        assert_eq!(to_text(&nothing), "Cluster prod (from --cluster-name): nothing would be written.\n");
        let remembered = Foresight { name_source: Source::Remembered, ..nothing };
        let said = "Cluster prod (remembered in ConfigMap kube-system/harvester-cloud-provider): ";
        assert!(to_text(&remembered).starts_with(said), "{}", to_text(&remembered));
        let held = to_text(&found(Some(("WrongHarvester", "x, but y".into()))));
        assert!(held.contains("The controller would be held, WrongHarvester: x, but y\n"), "{held}");
    }

    #[test]
    fn a_name_that_is_not_followed_is_named_with_the_one_that_is() {
        let remembered = Foresight { name_source: Source::Remembered, ..found(None) };
        let told = not_followed("other", true, &remembered).unwrap();
        assert!(
            told.starts_with("--cluster-name=other is not followed: this cluster is prod on Harvester (remembered ")
        );
        assert!(told.ends_with("The plan is for prod."), "{told}");
        assert_eq!(not_followed("prod", true, &remembered), None);
        assert_eq!(not_followed("kubernetes", false, &remembered), None, "no name was given");
    }

    #[test]
    fn programs_get_all_of_it_and_an_exit_status() {
        let all = to_json(&found(None));
        assert_eq!(all["writes"][1]["body"]["spec"]["ipam"], "pool");
        assert_eq!(
            (&all["writes"][1]["cluster"], &all["writes"][1]["action"]),
            (&json!("harvester"), &json!("create"))
        );
        assert_eq!((&all["held"], &all["notes"][0]["reason"]), (&Value::Null, &json!("Booking")));
        assert_eq!(all["clusterNameFrom"], "flag", "a word for scripts, and no sentence");
        let nothing = Foresight { outlook: Outlook::default(), ..found(None) };
        let held = found(Some(("Paused", String::new())));
        assert_eq!([status(&nothing), status(&found(None)), status(&held)], [0, WRITES, HELD]);
    }

    #[test]
    fn the_command_line_is_that_of_the_controller() {
        command().debug_assert();
        let matches =
            command().try_get_matches_from(["plan", "--cluster-name=prod", "-o", "json", "--profiling"]).unwrap();
        assert_eq!(Flags::from_arg_matches(&matches).unwrap().cloud.cluster_name, "prod");
        assert!(command().try_get_matches_from(["plan", "-o", "xml"]).is_err());
    }
}
