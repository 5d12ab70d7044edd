//! Variables and flags of the announcer in the chart's values: refused where the program would not start with them,
//! which is asked itself.

use std::collections::BTreeMap;

use announcer_core::config::VARIABLES;
use announcer_core::{Config, ConfigError};
use testbed::Helm;
use testbed::helm::chart;

use super::{announcer as pod_of, env, notes, refusal, render};

/// What the announcer says to these variables and flags.
fn announcer_says(variables: &[(&str, &str)], flags: &[&str]) -> Result<Config, ConfigError> {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::from_env_and_args(variables, flags.iter().map(|flag| (*flag).to_owned()), "node1")
}

#[test]
fn a_variable_that_the_announcer_would_not_start_with_is_refused_and_its_neighbours_are_not() {
    for (variables, expected) in [
        (vec![("bgp_enable", "true")], "BGP"),
        (vec![("vip_routingtable", "1")], "routing table"),
        (vec![("vip_wireguard", "t")], "WireGuard"),
        (vec![("cp_enable", "True")], "announce the control plane's address with a kube-vip of its own"),
        (vec![("vip_arp", "false")], "set it to \"true\""),
        (vec![("svc_enable", "0")], "set it to \"true\""),
        (vec![("vip_subnet", "129")], "kube-vip.env.vip_subnet"),
        (vec![("vip_subnet", "99,64")], "kube-vip.env.vip_subnet"),
        (vec![("vip_leaseduration", "1h")], "a whole number of seconds"),
        (vec![("vip_leaseduration", "5"), ("vip_renewdeadline", "10")], "must be greater than vip_renewdeadline (10)"),
        (vec![("vip_retryperiod", "9")], "1.2 times vip_retryperiod (9)"),
        (vec![("vip_loglevel", "debug")], "-4 debug"),
        (vec![("vip_arpRate", "fast")], "milliseconds"),
    ] {
        assert!(announcer_says(&variables, &[]).is_err(), "the announcer would take {variables:?}");
        let env: Vec<String> = variables.iter().map(|(name, value)| format!("{name}: '{value}'")).collect();
        let said = refusal(&format!("kube-vip: {{env: {{{}}}}}", env.join(", ")));
        assert_eq!(said.matches(expected).count(), 2, "{expected} is not named by both Helms: {said}");
        render(&format!("kube-vip: {{enabled: false, env: {{{}}}}}", env.join(", ")));
    }
    let accepted = [
        ("vip_subnet", ["24", "99", "auto", "/24,/64", "auto,128", "32, auto"].as_slice()),
        ("vip_leaseduration", &["11", "3600"]),
        ("vip_loglevel", &["-8", "4"]),
        ("vip_arpRate", &["0", "500"]),
        ("bgp_enable", &["false", "F"]),
        ("vip_interface", &["auto"]),
    ];
    for (name, values) in accepted {
        for value in values {
            assert!(announcer_says(&[(name, value)], &[]).is_ok(), "{name}={value}");
            assert_eq!(env(&pod_of(&render(&format!("kube-vip: {{env: {{{name}: '{value}'}}}}"))), name), Some(*value));
        }
    }
}

#[test]
fn a_flag_that_the_announcer_does_not_have_is_refused_and_one_for_a_refused_mode_too() {
    assert!(announcer_says(&[], &["--foo=1"]).is_err() && announcer_says(&[], &["--bgp"]).is_err());
    let unknown = refusal("kube-vip: {extraArgs: {foo: 1}}");
    assert!(unknown.contains("the announcer has no flag --foo"), "{unknown}");
    for mode in ["kube-vip: {extraArgs: {bgp: null}}", "kube-vip: {extraArgs: {bgp: true}}"] {
        assert!(refusal(mode).contains("kube-vip.env.bgp_enable (or its flag in kube-vip.extraArgs)"), "{mode}");
    }
    // As in the program: the environment counts before flags.
    render("kube-vip: {extraArgs: {bgp: true}, env: {bgp_enable: 'false'}}");
    let helm = Helm::new("helm4").unwrap();
    let overruled = "kube-vip: {extraArgs: {prometheusHTTPServer: ':9', log: 4, arp: null}, env: {vip_loglevel: '4'}}";
    let file = helm.write("values.yaml", overruled).unwrap();
    let said = notes(&helm, &["--values", &file]);
    assert!(said.contains("before them: prometheusHTTPServer (prometheus_server is \":2112\"). Set"), "{said}");
}

#[test]
fn the_chart_knows_the_announcers_variables_and_names_others() {
    let helper = std::fs::read_to_string(chart().join("templates/_announcer.tpl")).unwrap();
    let block =
        helper.split("define \"kube-vip.variables\"").nth(1).and_then(|rest| rest.split("{{- end").next()).unwrap();
    let listed: BTreeMap<&str, &str> = block.lines().filter_map(|line| line.split_once(": ")).collect();
    let known = VARIABLES.iter().map(|variable| (variable.name, variable.flag.unwrap_or("\"\"")));
    assert_eq!(listed, known.collect::<BTreeMap<_, _>>());

    let helm = Helm::new("helm4").unwrap();
    let name = "global.cattle.clusterName=a";
    let said = notes(&helm, &["--set", &format!("{name},kube-vip.env.vip_interfce=eth1,kube-vip.env.https_proxy=x")]);
    assert!(said.contains("the announcer does not know and does not read: vip_interfce.\n"), "{said}");
    assert!(!notes(&helm, &["--set", &format!("{name},kube-vip.env.RUST_LOG=debug")]).contains("WARNING"));
}
