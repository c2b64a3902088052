//! `tympan site`: creates a site's folder, reports problems in one, installs one, and imports a project of AEM.

use std::path::Path;
use std::process::ExitCode;

use tympan_content_package::InstallOptions;
use tympan_site::{SiteFinding, SitePushScope, build_push_package, check_site, create_site};
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, say};

use crate::args::{RemoteInstanceArgs, SiteCommand};
use crate::command::package_remote::RemotePackageClient;
use crate::command::site_fault::{check_page_headers, site_fault};
use crate::command::site_import::run_site_import;

/// Runs the command.
///
/// # Errors
/// If the folder cannot be read or written.
pub(crate) fn run_site_command(site: &SiteCommand) -> CommandOutcome {
    match site {
        SiteCommand::New { dir } => {
            create_site(dir).map_err(site_fault)?;
            let dir = dir.display();
            say!("{dir}: created a site of two pages; run it with `tympan demo --site {dir}`");
            Ok(ExitCode::SUCCESS)
        }
        SiteCommand::Push { dir, content, instance } => {
            let scope = match content {
                true => SitePushScope::ComponentsAndContent,
                false => SitePushScope::Components,
            };
            push_site(dir, scope, instance)
        }
        SiteCommand::Import(import) => run_site_import(import),
        SiteCommand::Check { dir, json } => {
            print_findings(&check_site(dir, &check_page_headers).map_err(site_fault)?, *json)
        }
    }
}

/// Checks a site, and installs it into a running instance.
fn push_site(dir: &Path, scope: SitePushScope, instance: &RemoteInstanceArgs) -> CommandOutcome {
    let mut findings = check_site(dir, &check_page_headers).map_err(site_fault)?;
    findings.retain(|finding| !finding.warning);
    if !findings.is_empty() {
        return print_findings(&findings, instance.json);
    }
    let package = build_push_package(dir, scope).map_err(site_fault)?;
    let client = RemotePackageClient::from_instance(instance);
    // Identifiers of nodes are kept where they clash with nothing.
    let options = InstallOptions::default();
    client.print_response(&client.install_bytes(package, &options)?);
    Ok(ExitCode::SUCCESS)
}

/// Prints findings.
fn print_findings(findings: &[SiteFinding], is_json: bool) -> CommandOutcome {
    if is_json {
        let text = serde_json::to_string_pretty(findings)
            .map_err(|error| CommandFault::cannot_run(format!("cannot write JSON: {error}")))?;
        say!("{text}");
    } else {
        for finding in findings {
            let kind = if finding.warning { "warning: " } else { "" };
            say!("{}:{}:{}: {kind}{}", finding.file, finding.line, finding.column, finding.message);
        }
        let errors = findings.iter().filter(|finding| !finding.warning).count();
        say!("{errors} errors, {} warnings", findings.len() - errors);
    }
    let is_sound = findings.iter().all(|finding| finding.warning);
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED_EXIT_CODE) })
}
