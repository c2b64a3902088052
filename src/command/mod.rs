//! What each command does. Only here do errors become exit codes: 0 done, 1 a goal or check failed, 2 used wrongly,
//! 3 could not run.

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
pub(crate) mod picture;
mod remote;
mod repo;
mod site;
mod user;

pub(crate) use backup::{
    Before, ContentView, GivingWay, LeftBelow, Password, Settings, StateDatabase, Yielded,
    backend_at, keep_here, new_spool, read_home_files,
};

use std::io::Write as _;
use std::process::ExitCode;

use crate::args::{Arguments, Command};
use crate::backend;

/// Why a command ended without doing what it should.
#[derive(Debug)]
pub(crate) struct Fault {
    message: String,
    code: u8,
}

impl Fault {
    /// The arguments, or a file that they name, are refused.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 2 }
    }

    /// The command could not run.
    pub(crate) fn cannot_run(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 3 }
    }

    /// The command ended with a code of its own.
    pub(crate) fn with_code(message: impl Into<String>, code: u8) -> Self {
        Self { message: message.into(), code }
    }

    /// Returns the message, for the log.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Writes the message to standard error. Where that cannot be written, the exit code has to do.
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

pub(crate) type Outcome = Result<ExitCode, Fault>;

/// The exit code of a check that found something.
pub(crate) const CHECK_FAILED: u8 = 1;

/// Runs a command to its end.
///
/// # Errors
/// The [`Fault`] to print.
pub(crate) fn run(arguments: Arguments) -> Outcome {
    match arguments.command {
        Command::Demo(demo) => demo::run(&demo),
        Command::Author(instance) => instance::run(tympan_server::Role::Author, &instance),
        Command::Publish(instance) => instance::run(tympan_server::Role::Publish, &instance),
        Command::Dispatcher(arguments) => dispatcher::run(arguments),
        Command::Site(site) => site::run(&site),
        Command::Package(package) => {
            backend::choose_database_of_environment();
            package::run(&package)
        }
        Command::Index(index) => {
            backend::choose_database_of_environment();
            index::run(&index)
        }
        Command::Export(arguments) => {
            backend::choose_database_of_environment();
            export::run(&arguments)
        }
        Command::Repo(repo) => repo::run(&repo),
        Command::Blobs(arguments) => blobs::run(&arguments),
        Command::Backup(arguments) => backup::run(&arguments.command),
        Command::Pair(arguments) => pair::run(&arguments),
        Command::User(user) => {
            backend::choose_database_of_environment();
            user::run(&user)
        }
        Command::Jobs(jobs) => jobs::run(&jobs),
        Command::Activate(wanted) => activation::activate(&wanted),
        Command::Deactivate(wanted) => activation::deactivate(&wanted),
        Command::Assets(assets) => assets::run(&assets),
        Command::Lab(lab) => lab::run(lab),
        Command::Status(remote) => remote::status(&remote),
        Command::DrawPictures => picture::draw_pictures(),
        Command::RunTool(tool) => picture::run_tool(&tool),
        Command::DrawFile(arguments) => picture::draw_file(&arguments),
        Command::ReadPdf => match tympan_search::read_pdf() {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) => Err(Fault::cannot_run(format!("cannot read PDF: {error}"))),
        },
    }
}

/// Starts the runtime on which everything async of a command runs.
///
/// # Errors
/// If the system gives no threads.
pub(crate) fn runtime(blocking_threads: usize) -> Result<tokio::runtime::Runtime, Fault> {
    raise_open_files();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(blocking_threads)
        .build()
        .map_err(|error| Fault::cannot_run(format!("cannot start the runtime: {error}")))
}

/// Lets this process have as many connections and files open as the system allows it: shells and service managers often
/// begin with 1,024, which a crowd exceeds.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Without it, connections beyond the limit wait in the kernel.
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).ok();
}

/// Returns how many files this process may have open, which asked for as many as it can get; nothing if there is no bound.
pub(crate) fn most_open_files() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// Writes a line to standard output; a closed pipe is no fault.
#[macro_export]
macro_rules! say {
    ($($arguments:tt)*) => {{
        use std::io::Write as _;
        let mut out = std::io::stdout().lock();
        writeln!(out, $($arguments)*).and_then(|()| out.flush()).ok();
    }};
}
