//! The cloud controller manager's command: flags, their validation, the assembly, and the report of a failed start.

mod config;
pub mod flags;
pub mod plan;
mod run;
mod startup_error;
mod without_effect;

use std::process::ExitCode;

use clap::error::ErrorKind;
use runtime::error::chain;
use runtime::logging::{self, Format, Verbosity};

use self::flags::VersionForm;
use crate::VERSION;
use crate::stdout::say;

/// The first paragraph of clap's message, and its guess. The usage after it is left out, because it would break the
/// frame.
fn what_is_wrong(message: &str) -> String {
    let mut paragraphs = message.split("\n\n");
    let first = paragraphs.next().unwrap_or_default().trim_start_matches("error: ");
    let guess = paragraphs.find_map(|paragraph| paragraph.trim().strip_prefix("tip: "));
    match guess {
        Some(hint) => format!("{first} ({hint})"),
        None => first.to_owned(),
    }
}

/// What `--version` prints, if it is given.
fn version_asked_for(flags: &flags::Flags) -> Option<String> {
    match flags.version? {
        VersionForm::None => None,
        VersionForm::Plain => Some(VERSION.to_owned()),
        VersionForm::Raw => Some(format!("harvester-cloud-provider {VERSION} {}", std::env::consts::ARCH)),
    }
}

/// Runs the command; `arguments` includes the program's name.
pub fn main(arguments: &[String]) -> ExitCode {
    let flags = match flags::parse(arguments) {
        Ok(flags) => flags,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            // A reader that has closed the pipe (`| head`) is no error.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            logging::init(Format::Text, Verbosity::Klog(0));
            let asked =
                arguments.iter().any(|a| a == "--show-full-help-on-error" || a == "--show-full-help-on-error=true");
            return refuse(&what_is_wrong(&error.render().to_string()), asked);
        }
    };
    if let Some(version) = version_asked_for(&flags) {
        return say(&version);
    }
    logging::init(flags.logging_format, Verbosity::Klog(flags.log_level()));
    let full_help = flags.harvester.show_full_help_on_error;
    let configuration = match config::configure(&flags) {
        Ok(configuration) => configuration,
        Err(error) => return refuse(&chain(&error), full_help),
    };
    for warning in configuration.unnamed.iter().chain(&configuration.warnings) {
        tracing::warn!("{warning}");
    }
    for remark in &configuration.remarks {
        tracing::info!("{remark}");
    }
    let ignored = without_effect::given(arguments);
    for (flag, consequence) in without_effect::UNSAFE_TO_IGNORE.iter().filter(|(flag, _)| ignored.contains(flag)) {
        tracing::warn!("--{flag} has no effect here: {consequence}");
    }
    if !ignored.is_empty() {
        tracing::info!("these flags have no effect here: {} (see --help)", ignored.join(", "));
    }
    tracing::info!("cloudprovider.harvesterhci.io effective configurations: {}", effective(&flags, &configuration));

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(run::run(&flags, configuration)),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<run::Ended>() => {
            tracing::error!("{}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
        Err(error) => refuse(&chain(error.as_ref()), full_help),
    }
}

/// The log line with the effective flags (CCM spec 1.4 step 6).
fn effective(flags: &flags::Flags, configuration: &config::Configuration) -> String {
    let provider = &configuration.provider;
    format!(
        "--cluster-name={} --controllers={} --management-network={} --node-ip-cidr={} --node-exclude-ip-ranges={} \
         --disable-annotation-alpha-provided-ip-addr={} --disable-vmi-controller={} --disable-hostname-lookup={} \
         --show-full-help-on-error={}",
        provider.cluster_name.as_str(),
        flags.cloud.controllers.join(","),
        provider.management_network.as_ref().map(ToString::to_string).unwrap_or_default(),
        list(&provider.node_ip_cidr),
        list(&provider.node_exclude_ip_ranges),
        provider.ignore_node_annotations,
        provider.disable_vmi_controller,
        provider.disable_hostname_lookup,
        flags.harvester.show_full_help_on_error,
    )
}

fn list(prefixes: &[ipnet::IpNet]) -> String {
    prefixes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn refuse(error: &str, full_help: bool) -> ExitCode {
    for line in startup_error::lines(error, full_help) {
        tracing::error!("{line}");
    }
    if full_help {
        eprintln!("{}", flags::command().render_long_help());
    }
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_answered_with_what_was_meant() {
        let error = flags::parse(["harvester-cloud-provider", "--cluster-nam=x"]).unwrap_err();
        let said = what_is_wrong(&error.render().to_string());
        assert!(
            said.contains("'--cluster-nam'") && said.contains("'--cluster-name'") && !said.contains('\n'),
            "{said}"
        );
    }
}
