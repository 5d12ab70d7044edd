use super::*;
use crate::detect::profile::Profile;

fn config(env: &[(&str, &str)]) -> Result<Config, ConfigError> {
    with_args(env, &["manager"])
}

fn with_args(env: &[(&str, &str)], args: &[&str]) -> Result<Config, ConfigError> {
    Config::from_env_and_args(
        env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        args.iter().map(|arg| (*arg).to_owned()),
        "Host-1.Example",
    )
}

#[test]
fn the_harvester_chart_starts_as_it_is() {
    let config = config(&[
        ("vip_interface", ""),
        ("vip_arp", "true"),
        ("lb_enable", "true"),
        ("lb_port", "6443"),
        ("vip_subnet", "32"),
        ("cp_enable", "false"),
        ("svc_enable", "true"),
        ("svc_election", "false"),
        ("vip_leaderelection", "false"),
        ("prometheus_server", ":2112"),
    ])
    .unwrap();
    assert_eq!(config.interface, None);
    assert_eq!((config.prefix4, config.prefix6), (PrefixRule::Length(32), PrefixRule::Length(128)));
    assert_eq!(config.election_mode, ElectionMode::Node);
    assert_eq!(config.metrics.unwrap().address.to_string(), "[::]:2112");
    assert_eq!(config.lease.name, "plndr-svcs-lock");
    assert_eq!(config.without_effect, ["lb_enable=true", "lb_port=6443"]);
    assert_eq!(config.announce_interval, None, "no periodic announcements unless asked for");
    assert_eq!(config.fence(), Duration::from_secs(5));
}

#[test]
fn the_fence_falls_before_anybody_else_may_take_the_lease() {
    for (mode, duration, renew, retry, fence) in [
        ("global", "15", "10", "2", 12),
        ("global", "5", "3", "1", 3),
        ("global", "3", "2", "1", 2),
        ("node", "15", "10", "2", 5),
        ("node", "5", "3", "1", 3),
    ] {
        let config = config(&[
            ("election_mode", mode),
            ("vip_leaseduration", duration),
            ("vip_renewdeadline", renew),
            ("vip_retryperiod", retry),
        ])
        .unwrap();
        assert_eq!(config.fence(), Duration::from_secs(fence), "{mode} {duration}");
        assert!(config.fence() < config.lease.duration);
    }
}

#[test]
fn fail_over_is_configured_by_two_variables() {
    let config_of = |profile: &str, back: &str| config(&[("failover_profile", profile), ("vip_failback", back)]);
    assert_eq!(config(&[]).map(|config| (config.profile, config.fail_back)), Ok((Profile::Default, false)));
    assert_eq!(config_of("fast", "true").map(|config| (config.profile, config.fail_back)), Ok((Profile::Fast, true)));
    let error = config_of("quick", "false").unwrap_err().to_string();
    assert!(error.contains("failover_profile") && error.contains("default, fast or patient"), "{error}");
}

#[test]
fn booleans_have_the_grammar_of_go() {
    for text in ["1", "t", "T", "TRUE", "true", "True"] {
        assert!(config(&[("disable_service_updates", text)]).unwrap().disable_service_updates, "{text}");
    }
    for text in ["0", "f", "F", "FALSE", "false", "False"] {
        assert!(!config(&[("disable_service_updates", text)]).unwrap().disable_service_updates, "{text}");
    }
    for text in ["yes", "on", "tRUE", " true"] {
        let error = config(&[("disable_service_updates", text)]).unwrap_err().to_string();
        assert!(error.contains("disable_service_updates") && error.contains(text) && error.contains("TRUE"), "{error}");
    }
}

#[test]
fn a_bad_value_names_variable_value_and_what_is_accepted() {
    for (name, value) in [
        ("vip_subnet", "33,129"),
        ("vip_subnet", "a"),
        ("vip_subnet", "32,128,1"),
        ("vip_leaseduration", "15s"),
        ("vip_leaseduration", "0"),
        ("vip_arpRate", "-1"),
        ("prometheus_server", "2112"),
        ("prometheus_server", ":0"),
        ("health_check_port", "80"),
        ("election_mode", "both"),
        ("vip_interface", "eth0/1"),
        ("vip_servicesinterface", "an-interface-name-too-long"),
        ("svc_leasename", "a/b/c"),
        ("svc_leasename", "a lease"),
        ("svc_leasename", "A/lease"),
        ("svc_namespace", "A B"),
        ("vip_nodename", "../../x"),
        ("vip_nodename", "a..b"),
        ("vip_nodename", "node_1"),
        ("NODE_NAME", "-node"),
        ("vip_loglevel", "debug"),
        // Changes nothing here, and is still checked.
        ("enable_upnp", "maybe"),
    ] {
        let error = config(&[(name, value)]).unwrap_err();
        assert!(matches!(error, ConfigError::Value { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(name) && text.contains(value) && text.contains("accepted"), "{text}");
    }
}

#[test]
fn metrics_are_switched_off_by_an_empty_flag_and_not_by_an_empty_variable() {
    let served = |config: Result<Config, ConfigError>| config.unwrap().metrics.is_some();
    let empty_flag = ["manager", "--prometheusHTTPServer="];
    assert!(served(config(&[("prometheus_server", "")])), "as kube-vip has it");
    assert!(!served(with_args(&[], &empty_flag)));
    assert!(!served(with_args(&[("prometheus_server", "")], &empty_flag)));
    assert!(served(with_args(&[("prometheus_server", ":2113")], &empty_flag)), "the environment wins");
    let text = VARIABLES.iter().find(|variable| variable.name == "prometheus_server").unwrap().meaning;
    assert!(text.contains("empty variable") && text.contains("`--prometheusHTTPServer=`"), "{text}");
}

#[test]
fn modes_that_are_something_else_are_refused() {
    for (name, value) in [
        ("bgp_enable", "true"),
        ("cp_enable", "1"),
        ("vip_wireguard", "t"),
        ("vip_routingtable", "true"),
        ("vip_arp", "false"),
        ("svc_enable", "0"),
    ] {
        let error = config(&[(name, value)]).unwrap_err();
        assert!(matches!(&error, ConfigError::Unsupported { variable, .. } if *variable == name), "{error}");
    }
    assert!(config(&[("bgp_enable", "false"), ("cp_enable", "false")]).is_ok());
}

#[test]
fn election_mode_wins_over_svc_election() {
    for (env, expected) in [
        (&[][..], ElectionMode::Node),
        (&[("svc_election", "false")][..], ElectionMode::Node),
        (&[("svc_election", "true")][..], ElectionMode::Service),
        (&[("svc_election", "true"), ("election_mode", "global")][..], ElectionMode::Global),
        (&[("election_mode", "service")][..], ElectionMode::Service),
    ] {
        assert_eq!(config(env).unwrap().election_mode, expected, "{env:?}");
    }
}

#[test]
fn the_node_name_is_lower_cased_and_has_three_sources() {
    for (env, expected) in [
        (&[][..], "host-1.example"),
        (&[("NODE_NAME", "Node-A")][..], "node-a"),
        (&[("NODE_NAME", "node-a"), ("vip_nodename", "B.c")][..], "b.c"),
    ] {
        assert_eq!(config(env).unwrap().node_name, expected);
    }
}

#[test]
fn the_environment_wins_over_a_flag() {
    let config = with_args(
        &[("vip_leaseduration", "30")],
        &[
            "manager",
            "--arp",
            "--services",
            "--interface",
            "eth1",
            "--leaseDuration=20",
            "--leaseRetry",
            "3",
            "-n",
            "ours",
        ],
    )
    .unwrap();
    assert_eq!(config.interface.as_deref(), Some("eth1"));
    assert_eq!(config.lease.duration, Duration::from_secs(30));
    assert_eq!(config.lease.retry_period, Duration::from_secs(3));
    assert_eq!(config.lease.fallback_namespace, "ours");
}

#[test]
fn unknown_arguments_are_refused() {
    assert_eq!(with_args(&[], &["--nope"]).unwrap_err(), ConfigError::UnknownFlag("--nope".into()));
    assert_eq!(with_args(&[], &["start"]).unwrap_err(), ConfigError::UnexpectedArgument("start".into()));
    assert_eq!(
        with_args(&[], &["manager", "--interface"]).unwrap_err(),
        ConfigError::FlagWithoutValue("--interface".into())
    );
}

#[test]
fn lease_timings_must_fit() {
    assert_eq!(
        config(&[("vip_leaseduration", "10")]).unwrap_err(),
        ConfigError::Timing { duration: 10, renew: 10, retry: 2 }
    );
    assert!(config(&[("vip_leaseduration", "5"), ("vip_renewdeadline", "3"), ("vip_retryperiod", "1")]).is_ok());
    assert!(config(&[("vip_leaseduration", "15"), ("vip_renewdeadline", "10"), ("vip_retryperiod", "9")]).is_err());
}

#[test]
fn prefix_lengths_per_family() {
    use PrefixRule::{Auto, Length};
    for (text, expected) in [
        ("32", (Length(32), Length(128))),
        ("24", (Length(24), Length(128))),
        ("/24", (Length(24), Length(128))),
        ("128", (Length(32), Length(128))),
        ("32,128", (Length(32), Length(128))),
        ("auto", (Auto, Auto)),
        ("24,auto", (Length(24), Auto)),
        ("auto, 64", (Auto, Length(64))),
    ] {
        let config = config(&[("vip_subnet", text)]).unwrap();
        assert_eq!((config.prefix4, config.prefix6), expected, "{text}");
    }
}

#[test]
fn small_arp_rates_become_three_seconds() {
    assert_eq!(config(&[("vip_arpRate", "100")]).unwrap().announce_interval, Some(Duration::from_secs(3)));
    assert_eq!(config(&[("vip_arpRate", "500")]).unwrap().announce_interval, Some(Duration::from_millis(500)));
}

#[test]
fn the_lease_may_name_its_namespace() {
    let config = config(&[("svc_leasename", "ours/lock")]).unwrap();
    assert_eq!((config.lease.namespace.as_deref(), config.lease.name.as_str()), (Some("ours"), "lock"));
}

#[test]
fn an_empty_class_name_is_a_value() {
    assert_eq!(config(&[("lb_class_name", "")]).unwrap().class.name, "");
    assert_eq!(config(&[]).unwrap().class.name, "kube-vip.io/kube-vip-class");
}

proptest::proptest! {
    #[test]
    fn no_value_makes_it_panic(name in 0..VARIABLES.len(), value in "\\PC*") {
        let _ = config(&[(VARIABLES[name].name, &value)]);
    }

    #[test]
    fn no_argument_makes_it_panic(args in proptest::collection::vec("\\PC*", 0..4)) {
        let _ = Config::from_env_and_args([], args, "host");
    }
}

/// The reference and `--help` are made from the table: a default that is not the real one would mislead.
#[test]
fn every_default_in_the_table_is_what_counts_without_it() {
    let unset = config(&[]).unwrap();
    for variable in VARIABLES.iter().filter(|variable| !variable.default.is_empty()) {
        assert_eq!(config(&[(variable.name, variable.default)]).unwrap(), unset, "{}", variable.name);
    }
}

#[test]
fn a_boolean_or_a_number_with_a_meaning_has_a_default() {
    for variable in VARIABLES.iter().filter(|variable| !variable.has_no_effect() && variable.is_boolean()) {
        assert!(matches!(variable.default, "true" | "false"), "{}", variable.name);
    }
}

#[test]
fn the_address_of_the_api_server_is_a_url() {
    assert_eq!(
        config(&[("kubernetes_addr", "https://10.0.0.1:6443")]).unwrap().api.server.as_deref(),
        Some("https://10.0.0.1:6443")
    );
    let error = config(&[("kubernetes_addr", "foo")]).unwrap_err().to_string();
    assert!(error.contains("kubernetes_addr") && error.contains("foo") && error.contains("https://"), "{error}");
}
