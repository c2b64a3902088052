//! `tympan doctor`: examines a machine and a home, and says what to do.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use tympan_home::{
    DiagnosisFinding, DiagnosisLevel, diagnose_access, diagnose_address, diagnose_certificate,
    diagnose_clock, diagnose_database, diagnose_disk, diagnose_format, diagnose_open_files,
    is_home_in_use,
};
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, say};
use tympan_web::listen::ListenerLimits;

use crate::args::{DoctorArgs, ServiceRole};
use crate::command::dispatcher::DISPATCHER_CONFIG_FILE;
use crate::command::runtime::create_runtime;
use crate::config::{TympanConfig, check_config_text, parse_config_text};
use crate::home::STATE_TABLES;

/// Runs the command.
pub(crate) fn run_doctor(arguments: &DoctorArgs) -> CommandOutcome {
    let now = SystemTime::now();
    let findings = create_runtime(4)?.block_on(collect_findings(arguments, now));
    if arguments.json {
        let text = serde_json::to_string_pretty(&findings)
            .map_err(|error| CommandFault::cannot_run(format!("cannot write JSON: {error}")))?;
        say!("{text}");
    } else {
        say!("{}", findings_text(&findings).trim_end());
    }
    let is_sound = findings.iter().all(|finding| finding.level != DiagnosisLevel::Error);
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED_EXIT_CODE) })
}

/// Returns the findings about a home, as the command prints them.
///
/// # Errors
/// If the command cannot run.
pub(crate) fn diagnose_home_text(home: &Path) -> Result<String, CommandFault> {
    let arguments = DoctorArgs {
        home: Some(home.to_owned()),
        role: None,
        listen: None,
        database: None,
        json: false,
    };
    let findings = create_runtime(4)?.block_on(collect_findings(&arguments, SystemTime::now()));
    Ok(findings_text(&findings))
}

fn findings_text(findings: &[DiagnosisFinding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let level = match finding.level {
            DiagnosisLevel::Ok => "ok",
            DiagnosisLevel::Warning => "warning",
            DiagnosisLevel::Error => "error",
        };
        // Writing to a string cannot fail.
        writeln!(text, "{level:<8}{}: {}", finding.check, finding.message).ok();
        if let Some(advice) = &finding.advice {
            writeln!(text, "        to do: {advice}").ok();
        }
    }
    text
}

async fn collect_findings(arguments: &DoctorArgs, now: SystemTime) -> Vec<DiagnosisFinding> {
    let home = arguments.home.as_deref();
    let mut findings = Vec::new();
    let config = read_config(home, &mut findings);
    let most = ListenerLimits::default().max_connections;
    findings.push(diagnose_open_files(config.listen.max_connections.unwrap_or(most)));
    findings.push(diagnose_clock(home, now));
    let is_running = home.is_some_and(is_home_in_use);
    for (name, address) in listen_addresses(arguments, &config) {
        findings.push(diagnose_address(name, address, is_running));
    }
    for file in certificate_files(&config) {
        findings.push(diagnose_certificate(&file, now));
    }
    if let Some(home) = home {
        findings.push(diagnose_access(home));
        findings.push(diagnose_disk(home));
        findings.extend(diagnose_format(home, &STATE_TABLES).await);
    } else {
        findings.push(diagnose_disk(Path::new(".")));
    }
    if let Some(url) = arguments.database.as_ref().or(config.database.url.as_ref()) {
        findings.push(diagnose_database(url, now).await);
    }
    findings
}

/// Reads the configuration of a home, and adds its faults.
fn read_config(home: Option<&Path>, findings: &mut Vec<DiagnosisFinding>) -> TympanConfig {
    let Some(home) = home else { return TympanConfig::default() };
    let file = home.join(tympan_home::CONFIG_FILE);
    let name = file.display().to_string();
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return TympanConfig::default();
        }
        Err(error) => {
            findings.push(DiagnosisFinding {
                check: "configuration",
                level: DiagnosisLevel::Error,
                message: format!("cannot read `{name}`: {error}"),
                advice: Some("let the user of the instance read the file".to_owned()),
            });
            return TympanConfig::default();
        }
    };
    let faults = check_config_text(&name, &text, home);
    findings.extend(faults.into_iter().map(|fault| DiagnosisFinding {
        check: "configuration",
        level: DiagnosisLevel::Error,
        message: fault,
        advice: Some("`tympan config explain KEY` tells what a key takes".to_owned()),
    }));
    parse_config_text(&name, &text).unwrap_or_default()
}

/// Returns the addresses that an instance would listen on, with the names of the listeners.
fn listen_addresses(
    arguments: &DoctorArgs,
    config: &TympanConfig,
) -> Vec<(&'static str, SocketAddr)> {
    let is_dispatcher_home =
        arguments.home.as_ref().is_some_and(|home| home.join(DISPATCHER_CONFIG_FILE).exists());
    let role = arguments.role.or(is_dispatcher_home.then_some(ServiceRole::Dispatcher));
    let usual = role.map(ServiceRole::default_address);
    let main = arguments.listen.or(config.listen.address).or(usual);
    let dispatcher = &config.dispatcher;
    [
        main.map(|address| (role.map_or("listener", ServiceRole::name), address)),
        config.admin.address.map(|address| ("second listener", address)),
        dispatcher.admin.address.map(|address| ("admin listener of the dispatcher", address)),
        dispatcher.https_redirect.address.map(|address| ("redirect to https", address)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the certificate chains that listeners use, each once.
fn certificate_files(config: &TympanConfig) -> Vec<PathBuf> {
    let front = config.dispatcher.front.certificate.iter().map(|pair| pair.chain.clone());
    let mut files: Vec<PathBuf> =
        config.listen.tls_certificate.iter().cloned().chain(front).collect();
    files.sort();
    files.dedup();
    files
}
