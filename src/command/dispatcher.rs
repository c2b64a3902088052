//! `tympan dispatcher`: run, check, explain.

mod watch;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use http::{HeaderMap, HeaderName, Method};
use tokio::sync::watch::{Receiver, channel};
use tympan_dispatcher::any::{Diagnostic, Severity, Sources};
use tympan_dispatcher::config::{Config, Loaded};
use tympan_dispatcher::log::Log;
use tympan_dispatcher::{Dispatcher, Runtime, Settings};
use tympan_web::listen::{Front, Limits, Reuse, bind};
use tympan_web::log_file::LogFile;

use crate::args;
use crate::args::DispatcherCommand;
use crate::command::instance::{Signals, main_front};
use crate::command::{CHECK_FAILED, Fault, Outcome, runtime};
use crate::home::chain;
use crate::say;

/// The configuration's name in a home.
pub(crate) const CONFIG_FILE: &str = "dispatcher.any";

/// Runs the command.
pub(crate) fn run(arguments: args::Dispatcher) -> Outcome {
    match arguments.command {
        Some(DispatcherCommand::Convert { files }) => convert(&files),
        Some(DispatcherCommand::Check { file, root, json }) => check(&file, root, json),
        Some(DispatcherCommand::Explain { file, url, root, method, header, json }) => {
            let config = load(&file, &sources(root))?.config;
            explain(&config, &url, (&method, &header), json)
        }
        None => {
            let (config, home) = match (arguments.config, arguments.home) {
                (Some(file), _) => (file, None),
                (None, Some(home)) => (home.join(CONFIG_FILE), Some(home)),
                (None, None) => {
                    return Err(Fault::usage(
                        "say which configuration: --config FILE.any or --home DIR",
                    ));
                }
            };
            let in_home = || home.as_ref().map(|home| home.join("tympan.toml"));
            let files = Files {
                settings: arguments.settings.or_else(|| in_home().filter(|file| file.exists())),
                config,
            };
            let logs = home.as_ref().map(|home| home.join("logs"));
            run_until_signal(&files, arguments.listen, logs.as_deref())
        }
    }
}

/// Takes the environment's variables for `${NAME}` in configurations.
fn sources(root: Option<PathBuf>) -> Sources {
    Sources { environment: std::env::vars().collect(), root }
}

/// What a dispatcher is configured by.
#[derive(Debug, Clone)]
struct Files {
    config: PathBuf,
    settings: Option<PathBuf>,
}

impl Files {
    /// Reads both files, and returns all files that they consist of.
    fn read(&self) -> Result<(Loaded, crate::config::Config, Vec<PathBuf>), Fault> {
        let loaded = load(&self.config, &sources(None))?;
        let rest = match &self.settings {
            Some(file) => crate::config::read_file(file)?,
            None => crate::config::Config::default(),
        };
        let mut all = loaded.files.clone();
        all.extend(self.settings.clone());
        Ok((loaded, rest, all))
    }
}

/// Reads a configuration to serve with.
///
/// # Errors
/// With all findings if any forbids to serve.
fn load(file: &Path, sources: &Sources) -> Result<Loaded, Fault> {
    let loaded = Config::load(file, sources);
    if loaded.has_errors() {
        let findings: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
        return Err(Fault::usage(findings.join("\n")));
    }
    for finding in &loaded.diagnostics {
        tracing::warn!(reason = %finding, "dispatcher configuration");
    }
    Ok(loaded)
}

/// Opens a dispatcher and its socket. With a folder for logs it writes `dispatcher.log` and `access.log` there.
///
/// # Errors
/// With the role and address if the socket is taken, or with the configuration's findings.
pub(crate) fn open(
    file: &Path,
    listen: SocketAddr,
    logs: Option<&Path>,
) -> Result<(Dispatcher, std::net::TcpListener), Fault> {
    let loaded = load(file, &sources(None))?;
    open_with(loaded.config, &Settings::default(), listen, logs)
}

fn open_with(
    config: Config,
    settings: &Settings,
    listen: SocketAddr,
    logs: Option<&Path>,
) -> Result<(Dispatcher, std::net::TcpListener), Fault> {
    let listener = bind(listen, Reuse::Exclusive)
        .map_err(|error| Fault::cannot_run(format!("dispatcher: {}", chain(&error))))?;
    let dispatcher = Dispatcher::with_settings(config, settings, runtime_with(logs)?)
        .map_err(|error| Fault::usage(chain(&error)))?;
    Ok((dispatcher, listener))
}

/// Opens the logs of a dispatcher.
fn runtime_with(logs: Option<&Path>) -> Result<Runtime, Fault> {
    let Some(logs) = logs else { return Ok(Runtime::default()) };
    let failed = |error: &dyn std::error::Error| Fault::cannot_run(chain(error));
    std::fs::create_dir_all(logs).map_err(|error| failed(&error))?;
    let log = LogFile::open(&logs.join("dispatcher.log")).map_err(|error| failed(&error))?;
    let access_log = LogFile::open(&logs.join("access.log")).map_err(|error| failed(&error))?;
    Ok(Runtime {
        log: Log { file: Some(log), ..Log::default() },
        access_log: Some(access_log),
        ..Runtime::default()
    })
}

/// Serves until `stopped` turns true.
///
/// # Errors
/// If the socket fails.
pub(crate) async fn serve(
    dispatcher: Dispatcher,
    listener: std::net::TcpListener,
    stopped: Receiver<bool>,
) -> Result<(), Fault> {
    serve_by(dispatcher, listener, Front::from(Limits::default()), stopped).await
}

async fn serve_by(
    dispatcher: Dispatcher,
    listener: std::net::TcpListener,
    front: Front,
    mut stopped: Receiver<bool>,
) -> Result<(), Fault> {
    let until = async move {
        // The sender lives as long as the process serves.
        stopped.wait_for(|stopped| *stopped).await.ok();
    };
    let served = dispatcher.serve(listener, front, until).await;
    served.map_err(|error| Fault::cannot_run(chain(&error)))
}

fn run_until_signal(files: &Files, listen: SocketAddr, logs: Option<&Path>) -> Outcome {
    runtime(256)?.block_on(async {
        let mut signals = Signals::listen()?;
        let reload = watch::Watcher::listen()?;
        let (loaded, rest, all) = files.read()?;
        let front = main_front(&rest, Limits::default().body_bytes)?;
        let (dispatcher, listener) = open_with(loaded.config, &rest.dispatcher, listen, logs)?;
        let address = listener.local_addr().unwrap_or(listen);
        let (stop, stopped) = channel(false);
        tokio::spawn(reload.run(files.clone(), all, dispatcher.clone()));
        let served = tokio::spawn(serve_by(dispatcher, listener, front, stopped));
        say!("dispatcher listens on http://{address}");
        say!("ready");
        tokio::pin!(served);
        tokio::select! {
            ended = &mut served => ended.map_err(|error| Fault::cannot_run(chain(&error)))??,
            () = signals.wait() => {
                stop.send_replace(true);
                served.await.map_err(|error| Fault::cannot_run(chain(&error)))??;
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn convert(files: &[PathBuf]) -> Outcome {
    let mut texts = Vec::new();
    for file in files {
        let bytes = std::fs::read(file)
            .map_err(|error| Fault::usage(format!("cannot read `{}`: {error}", file.display())))?;
        texts.push((file.as_path(), String::from_utf8_lossy(&bytes).into_owned()));
    }
    let texts: Vec<(&Path, &str)> =
        texts.iter().map(|(file, text)| (*file, text.as_str())).collect();
    let converted = tympan_dispatcher::convert(&texts);
    say!("{}", converted.toml.trim_end());
    print_to_stderr(&converted.diagnostics);
    Ok(outcome_of(&converted.diagnostics))
}

#[expect(clippy::print_stderr, reason = "standard output holds the converted text")]
fn print_to_stderr(findings: &[Diagnostic]) {
    for finding in findings {
        eprintln!("{finding}");
    }
}

/// A check fails on errors, not on warnings.
fn outcome_of(findings: &[Diagnostic]) -> ExitCode {
    let has_error = findings.iter().any(|finding| finding.severity == Severity::Error);
    if has_error { ExitCode::from(CHECK_FAILED) } else { ExitCode::SUCCESS }
}

fn check(file: &Path, root: Option<PathBuf>, json: bool) -> Outcome {
    let loaded = Config::load_to_check(file, &sources(root));
    let findings = tympan_dispatcher::check(&loaded);
    if json {
        let list: Vec<_> =
            findings.iter().map(|finding| serde_json::json!(finding.to_string())).collect();
        say!("{}", serde_json::Value::from(list));
    } else {
        findings.iter().for_each(|finding| say!("{finding}"));
    }
    Ok(outcome_of(&findings))
}

fn explain(
    config: &Config,
    url: &str,
    (method, headers): (&str, &[String]),
    json: bool,
) -> Outcome {
    let method: Method =
        method.parse().map_err(|_| Fault::usage(format!("`{method}` is no method")))?;
    let mut sent = HeaderMap::new();
    for header in headers {
        let malformed = || Fault::usage(format!("`{header}` is no header; write 'Name: value'"));
        let (name, value) = header.split_once(':').ok_or_else(malformed)?;
        let name: HeaderName = name.trim().parse().map_err(|_| malformed())?;
        sent.append(name, value.trim().parse().map_err(|_| malformed())?);
    }
    let explanation = tympan_dispatcher::explain(config, &method, url, &sent, SystemTime::now())
        .map_err(|fault| Fault::usage(chain(&fault)))?;
    if json {
        say!("{}", serde_json::to_value(&explanation).unwrap_or_default());
    } else {
        say!("{}", explanation.to_string().trim_end());
    }
    Ok(ExitCode::SUCCESS)
}
