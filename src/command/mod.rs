//! The implementation of each command. Only here are errors mapped to exit codes: 0 done, 1 a goal or check failed, 2
//! invalid usage, 3 could not run.

mod activation;
mod assets;
mod backup;
mod blobs;
mod certificate;
mod demo;
mod demo_portal;
mod dispatcher;
mod export;
mod file_watch;
mod index;
mod instance;
mod jobs;
mod lab;
mod package;
mod package_remote;
pub(crate) mod pair;
mod remote_instance;
pub(crate) mod rendition_process;
mod repo;
mod site;
mod user;

pub(crate) use backup::{
    ContentDocumentView, SeparatelySavedBase, StateDatabaseInclusion, TunedSaveSettings,
    VaultPassword, enable_vault_cache, new_spool_dir, read_home_files, start_save_throttle,
    vault_backend_at,
};

use std::io::Write as _;
use std::process::ExitCode;

use crate::args::{TympanArgs, TympanCommand};
use crate::home_chunk_store;

/// The failure of a command, with its exit code.
#[derive(Debug)]
pub(crate) struct CommandFault {
    message: String,
    code: u8,
}

impl CommandFault {
    /// Creates the fault for invalid arguments, or an invalid file that they name.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 2 }
    }

    /// Creates the fault of a command that could not run.
    pub(crate) fn cannot_run(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 3 }
    }

    /// Creates a fault with another exit code.
    pub(crate) fn with_code(message: impl Into<String>, code: u8) -> Self {
        Self { message: message.into(), code }
    }

    /// Returns the message, for the log.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Writes the message to standard error. If that fails, only the exit code reports the fault.
    pub(crate) fn print(&self) {
        writeln!(std::io::stderr(), "tympan: {}", self.message).ok();
    }

    /// Returns the exit code as a number.
    pub(crate) const fn code(&self) -> u8 {
        self.code
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

pub(crate) type CommandOutcome = Result<ExitCode, CommandFault>;

/// The exit code of a check that found something.
pub(crate) const CHECK_FAILED_EXIT_CODE: u8 = 1;

/// Runs a command to its end.
///
/// # Errors
/// The [`CommandFault`] to print.
pub(crate) fn run_command(arguments: TympanArgs) -> CommandOutcome {
    match arguments.command {
        TympanCommand::Demo(demo) => demo::run_demo(&demo),
        TympanCommand::Author(instance) => {
            instance::run_instance(tympan_server::InstanceRole::Author, &instance)
        }
        TympanCommand::Publish(instance) => {
            instance::run_instance(tympan_server::InstanceRole::Publish, &instance)
        }
        TympanCommand::Dispatcher(arguments) => dispatcher::run_dispatcher_command(arguments),
        TympanCommand::Site(site) => site::run_site_command(&site),
        TympanCommand::Package(package) => {
            home_chunk_store::set_database_from_environment();
            package::run_package_command(&package)
        }
        TympanCommand::Index(index) => {
            home_chunk_store::set_database_from_environment();
            index::run_index_command(&index)
        }
        TympanCommand::Export(arguments) => {
            home_chunk_store::set_database_from_environment();
            export::run_export(&arguments)
        }
        TympanCommand::Repo(repo) => repo::run_repo_command(&repo),
        TympanCommand::Blobs(arguments) => blobs::run_blobs_command(&arguments),
        TympanCommand::Backup(arguments) => backup::run_backup_command(&arguments.command),
        TympanCommand::Pair(arguments) => pair::run_pair_command(&arguments),
        TympanCommand::User(user) => {
            home_chunk_store::set_database_from_environment();
            user::run_user_command(&user)
        }
        TympanCommand::Jobs(jobs) => jobs::run_jobs_command(&jobs),
        TympanCommand::Activate(activate_args) => activation::run_activate(&activate_args),
        TympanCommand::Deactivate(deactivate_args) => activation::run_deactivate(&deactivate_args),
        TympanCommand::Assets(assets) => assets::run_assets_command(&assets),
        TympanCommand::Lab(lab) => lab::run_lab_command(lab),
        TympanCommand::Status(remote) => remote_instance::print_instance_status(&remote),
        TympanCommand::DrawPictures => rendition_process::run_rendition_process(),
        TympanCommand::RunTool(tool) => rendition_process::run_bounded_tool(&tool),
        TympanCommand::DrawFile(arguments) => rendition_process::render_file(&arguments),
        TympanCommand::ReadPdf => match tympan_search::read_pdf() {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) => Err(CommandFault::cannot_run(format!("cannot read PDF: {error}"))),
        },
    }
}

/// Starts the runtime for all async code of a command.
///
/// # Errors
/// If the system cannot create threads.
pub(crate) fn create_runtime(
    blocking_threads: usize,
) -> Result<tokio::runtime::Runtime, CommandFault> {
    raise_open_file_limit();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(blocking_threads)
        .build()
        .map_err(|error| CommandFault::cannot_run(format!("cannot start the runtime: {error}")))
}

/// Raises the limit of open files to the maximum that the system allows: shells and service managers often set 1,024,
/// which many concurrent connections exceed.
fn raise_open_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If it fails, connections beyond the limit wait in the kernel.
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).ok();
}

/// Returns the limit of open files of this process, after it was raised to the maximum; `None` if there is no limit.
pub(crate) fn open_file_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// Writes a line to standard output; ignores a closed pipe.
#[macro_export]
macro_rules! say {
    ($($arguments:tt)*) => {{
        use std::io::Write as _;
        let mut out = std::io::stdout().lock();
        writeln!(out, $($arguments)*).and_then(|()| out.flush()).ok();
    }};
}
