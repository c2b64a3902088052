//! `tympan site import`: installs the packages of an AEM project, carries out its repoinit scripts, and says what runs
//! and what does not.

use std::path::Path;
use std::process::ExitCode;

use indicatif::ProgressBar;
use serde::Deserialize;
use serde_json::{Value, json};
use tympan_content::NodePath;
use tympan_content_package::{InstallOptions, InstallProgress, RepoinitOutcome};
use tympan_home::Home;
use tympan_server::SUPPORTED_CONFIG_PIDS;
use tympan_site::{
    AemImportProgress, AemImportTarget, AemProject, AemProjectOptions, RepositoryImportTarget,
    import_aem_project, read_aem_project,
};
use tympan_terminal::{CommandFault, CommandOutcome, say};

use crate::args::{RemoteInstanceArgs, SiteImportArgs};
use crate::command::demo::install_progress_style;
use crate::command::package::refusal_fault;
use crate::command::package_remote::RemotePackageClient;
use crate::command::remote_instance::{json_member, send_text};
use crate::command::site_fault::site_fault;
use crate::config::read_home_config;
use crate::home::{
    ADMIN_USER, close_home, open_existing_home, refuse_running_home, set_database_from_environment,
};

/// Runs the command.
///
/// # Errors
/// If the project cannot be read. If a package or script fails, what was done is printed before.
pub(crate) fn run_site_import(arguments: &SiteImportArgs) -> CommandOutcome {
    set_database_from_environment();
    let run_modes = active_run_modes(arguments)?;
    let options =
        AemProjectOptions { run_modes: &run_modes, supported_pids: SUPPORTED_CONFIG_PIDS };
    let project = read_aem_project(&arguments.paths, &options).map_err(site_fault)?;
    let is_dry_run = arguments.dry_run;
    let (progress, done) = match (arguments.remote(), &arguments.home) {
        (Some(instance), _) => {
            import_aem_project(&project, Some(&mut InstanceImportTarget(instance)), is_dry_run)
        }
        (None, Some(dir)) => import_into_home(&project, dir, is_dry_run)?,
        (None, None) => import_aem_project::<InstanceImportTarget>(&project, None, is_dry_run),
    };
    print_import(&project, &progress, &run_modes, arguments.json);
    done.map(|()| ExitCode::SUCCESS)
}

fn active_run_modes(arguments: &SiteImportArgs) -> Result<Vec<String>, CommandFault> {
    if !arguments.run_modes.is_empty() {
        return Ok(arguments.run_modes.clone());
    }
    let mut modes = vec!["author".to_owned()];
    if let Some(home) = &arguments.home {
        modes.extend(read_home_config(home)?.jobs.run_modes);
    }
    Ok(modes)
}

fn import_into_home(
    project: &AemProject,
    dir: &Path,
    is_dry_run: bool,
) -> Result<(AemImportProgress, Result<(), CommandFault>), CommandFault> {
    refuse_running_home(dir)?;
    let home = open_existing_home(dir)?;
    require_first_user(&home, dir)?;
    let bar = ProgressBar::new(1).with_style(install_progress_style()).with_message("installing");
    let mut on_progress = |_: &Path, step: InstallProgress<'_>| {
        bar.set_length(step.total_nodes as u64);
        bar.set_position(step.done_nodes as u64);
    };
    let mut target = RepositoryImportTarget {
        repository: &home.repository,
        user: ADMIN_USER,
        on_progress: &mut on_progress,
    };
    let (progress, done) = import_aem_project(project, Some(&mut target), is_dry_run);
    bar.finish_and_clear();
    close_home(&home)?;
    Ok((progress, done.map_err(refusal_fault)))
}

/// Refuses a home without users: the first start of its instance creates the first user and the initial policies only in
/// a repository that has none.
fn require_first_user(home: &Home, dir: &Path) -> Result<(), CommandFault> {
    let failed = |error: tympan_content::Error| refusal_fault(error.into());
    let users = NodePath::new("/home/users").map_err(failed)?;
    let snapshot = home.repository.snapshot().map_err(failed)?;
    if snapshot.node(&users).map_err(failed)?.is_some() {
        return Ok(());
    }
    let dir = dir.display();
    Err(CommandFault::usage(format!(
        "the home `{dir}` has no user yet; start `tympan author --home {dir}` once, so that it creates its first user \
         and policies"
    )))
}

/// A running instance as the target of an import.
struct InstanceImportTarget(RemoteInstanceArgs);

impl AemImportTarget for InstanceImportTarget {
    type Error = CommandFault;

    fn install(&mut self, file: &Path, is_dry_run: bool) -> Result<Value, CommandFault> {
        let client = RemotePackageClient::from_instance(&self.0);
        let response = if is_dry_run {
            client.diff(file)?
        } else {
            client.install_file(file, &InstallOptions::default())?
        };
        Ok(json_member(&response, "report").clone())
    }

    fn initialize(
        &mut self,
        text: &str,
        is_dry_run: bool,
    ) -> Result<Vec<RepoinitOutcome>, CommandFault> {
        let path = format!("/api/v1/repoinit?dryRun={is_dry_run}");
        let response = send_text(&self.0, &path, text)?;
        Vec::deserialize(json_member(&response, "statements")).map_err(|error| {
            CommandFault::cannot_run(format!("the response is not understood: {error}"))
        })
    }

    fn describe(error: &CommandFault) -> String {
        error.message().to_owned()
    }
}

fn print_import(
    project: &AemProject,
    progress: &AemImportProgress,
    run_modes: &[String],
    is_json: bool,
) {
    if is_json {
        let mut all = serde_json::to_value(&project.report).unwrap_or_default();
        if let Value::Object(members) = &mut all {
            members.insert("packages".to_owned(), json!(progress.packages));
            members.insert("repoinit".to_owned(), json!(progress.repoinit));
            members.insert("run_modes".to_owned(), json!(run_modes));
        }
        say!("{all:#}");
        return;
    }
    say!("run modes: {}", run_modes.join(", "));
    say!("{}", progress.to_string().trim_end());
    say!("{}", project.report.to_string().trim_end());
}
