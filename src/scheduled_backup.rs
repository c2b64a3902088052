//! Scheduled saves of an author: the configuration, and what the instance shows of them.

use std::sync::Arc;
use std::time::SystemTime;

use tympan_backup::BackupRunRecord;
use tympan_home::Home;
use tympan_home_backup::{
    BackupSection, SAVE_SCHEDULE_NAME, VaultContent, schedule_saves, scheduled_save_log,
    unschedule_saves,
};
use tympan_jobs::JobWorker;
use tympan_server::{BackupRun, Instance, SavedContent, SavedPage, SavedState};
use tympan_terminal::{CommandFault, error_chain_text};

use crate::args::vault::VaultLocationArgs;
use crate::command::{user_config_dir, vault_access, vault_cache_dir};
use crate::home::home_access;

/// Registers the job, its schedule, and its monitoring.
///
/// # Errors
/// With the key if the configuration is invalid; if the state database fails.
pub(crate) async fn register_save_job(
    worker: &JobWorker,
    home: &Home,
    section: &BackupSection,
    instance: &Instance,
) -> Result<(), CommandFault> {
    // Registered even if no saves are scheduled any more: the log lists earlier ones.
    let log = scheduled_save_log(&home.dir);
    instance.set_backup_run_source(move || Ok(log.read()?.into_iter().map(to_api_run).collect()));
    let location = VaultLocationArgs {
        ssh_key: section.ssh_keys.clone(),
        ssh_known_hosts: section.ssh_known_hosts.clone(),
        rest_password_file: section.rest_password_file.clone(),
        vault_ca: section.vault_ca.clone(),
        ..VaultLocationArgs::default()
    };
    let options = section.save_options(vault_access(&location), home.config.history.retention());
    let Some(mut options) = options.map_err(schedule_fault)? else {
        return unschedule_saves(worker).await.map_err(schedule_fault);
    };
    let cache_bytes = location.tree_cache_bytes();
    options.cache = vault_cache_dir(cache_bytes).map(|dir| (dir, cache_bytes));
    options.config_dir = user_config_dir();
    let saved = HomeSavedContent(VaultContent::new(&home.dir, options.clone()));
    instance.set_saved_content(Arc::new(saved));
    let status = schedule_saves(worker, &home_access(), home, options).await;
    let status = status.map_err(schedule_fault)?;
    instance.set_backup_schedule(SAVE_SCHEDULE_NAME);
    let watched = status.clone();
    instance.add_health_check("backup", move || watched.current_fault(SystemTime::now()));
    instance.add_metrics_source(move |role| status.render_metrics(role));
    Ok(())
}

/// The pages in the vault, as the API shows them.
struct HomeSavedContent(VaultContent);

impl SavedContent for HomeSavedContent {
    fn list_states(&self, limit: usize) -> Result<Vec<SavedState>, String> {
        let states = self.0.list_states(limit).map_err(|error| error_chain_text(&error))?;
        let states = states.into_iter().map(|state| SavedState {
            id: state.id,
            time: state.time.into(),
            is_incomplete: state.is_incomplete,
        });
        Ok(states.collect())
    }

    fn list_names(&self, state: &str, path: &str) -> Result<Vec<String>, String> {
        self.0.list_names(state, path).map_err(|error| error_chain_text(&error))
    }

    fn read_page(&self, state: &str, path: &str) -> Result<SavedPage, String> {
        let page = self.0.read_page(state, path).map_err(|error| error_chain_text(&error))?;
        Ok(SavedPage { docview: page.docview, has_files: page.has_files })
    }
}

fn schedule_fault(error: tympan_home_backup::Error) -> CommandFault {
    match error {
        tympan_home_backup::Error::Refused(reason) => {
            CommandFault::usage(format!("tympan.toml: [backup]: {reason}"))
        }
        tympan_home_backup::Error::Home(error) => crate::home_fault::home_fault(error),
        error => CommandFault::cannot_run(error_chain_text(&error)),
    }
}

/// Converts a run to its representation in the API.
fn to_api_run(run: BackupRunRecord) -> BackupRun {
    BackupRun {
        start: run.start.into(),
        end: run.end.into(),
        kind: run.kind.name(),
        paths: run.paths,
        snapshot: run.snapshot,
        items: run.items,
        read_items: run.read_items,
        bytes: run.bytes,
        added_bytes: run.added_bytes,
        stored_bytes: run.stored_bytes,
        faults: run.faults,
        error: run.error,
    }
}
