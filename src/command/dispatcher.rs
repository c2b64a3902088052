//! `tympan dispatcher`: run, check, explain.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use http::{HeaderMap, HeaderName, Method};
use tokio::sync::watch;
use tympan_dispatcher::any::Sources;
use tympan_dispatcher::config::Config;
use tympan_dispatcher::log::Log;
use tympan_dispatcher::{Dispatcher, Runtime};
use tympan_web::listen::{Front, Limits, Reuse, bind};
use tympan_web::log_file::LogFile;

use crate::args;
use crate::args::DispatcherCommand;
use crate::command::instance::Signals;
use crate::command::{CHECK_FAILED, Fault, Outcome, runtime};
use crate::home::chain;
use crate::say;

/// The configuration's name in a home.
pub(crate) const CONFIG_FILE: &str = "dispatcher.any";

/// Runs the command.
pub(crate) fn run(arguments: args::Dispatcher) -> Outcome {
    match arguments.command {
        Some(DispatcherCommand::Check { file, json }) => check(&file, json),
        Some(DispatcherCommand::Explain { file, url, method, header, json }) => {
            explain(&file, &url, &method, &header, json)
        }
        None => {
            let (config, logs) = match (arguments.config, arguments.home) {
                (Some(file), _) => (file, None),
                (None, Some(home)) => (home.join(CONFIG_FILE), Some(home.join("logs"))),
                (None, None) => {
                    return Err(Fault::usage(
                        "say which configuration: --config FILE.any or --home DIR",
                    ));
                }
            };
            run_until_signal(&config, arguments.listen, logs.as_deref())
        }
    }
}

/// Takes the environment's variables for `${NAME}` in configurations.
fn sources() -> Sources {
    Sources { environment: std::env::vars().collect(), root: None }
}

/// Reads a configuration to serve with.
///
/// # Errors
/// With all findings if any forbids to serve.
fn load(file: &Path) -> Result<Config, Fault> {
    let loaded = Config::load(file, &sources());
    if loaded.has_errors() {
        let findings: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
        return Err(Fault::usage(findings.join("\n")));
    }
    for finding in &loaded.diagnostics {
        tracing::warn!(reason = %finding, "dispatcher configuration");
    }
    Ok(loaded.config)
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
    let config = load(file)?;
    let listener = bind(listen, Reuse::Exclusive)
        .map_err(|error| Fault::cannot_run(format!("dispatcher: {}", chain(&error))))?;
    let dispatcher = Dispatcher::new(config, runtime_with(logs)?)
        .map_err(|error| Fault::cannot_run(chain(&error)))?;
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
    mut stopped: watch::Receiver<bool>,
) -> Result<(), Fault> {
    let until = async move {
        // The sender lives as long as the process serves.
        stopped.wait_for(|stopped| *stopped).await.ok();
    };
    let served = dispatcher.serve(listener, Front::from(Limits::default()), until).await;
    served.map_err(|error| Fault::cannot_run(chain(&error)))
}

fn run_until_signal(config: &Path, listen: SocketAddr, logs: Option<&Path>) -> Outcome {
    runtime(256)?.block_on(async {
        let mut signals = Signals::listen()?;
        let (dispatcher, listener) = open(config, listen, logs)?;
        let address = listener.local_addr().unwrap_or(listen);
        let (stop, stopped) = watch::channel(false);
        let served = tokio::spawn(serve(dispatcher, listener, stopped));
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

fn check(file: &Path, json: bool) -> Outcome {
    let loaded = Config::load(file, &sources());
    let findings = tympan_dispatcher::check(&loaded);
    if json {
        let list: Vec<_> =
            findings.iter().map(|finding| serde_json::json!(finding.to_string())).collect();
        say!("{}", serde_json::Value::from(list));
    } else {
        findings.iter().for_each(|finding| say!("{finding}"));
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED) })
}

fn explain(file: &Path, url: &str, method: &str, headers: &[String], json: bool) -> Outcome {
    let config = load(file)?;
    let method: Method =
        method.parse().map_err(|_| Fault::usage(format!("`{method}` is no method")))?;
    let mut sent = HeaderMap::new();
    for header in headers {
        let malformed = || Fault::usage(format!("`{header}` is no header; write 'Name: value'"));
        let (name, value) = header.split_once(':').ok_or_else(malformed)?;
        let name: HeaderName = name.trim().parse().map_err(|_| malformed())?;
        sent.append(name, value.trim().parse().map_err(|_| malformed())?);
    }
    let explanation = tympan_dispatcher::explain(&config, &method, url, &sent, SystemTime::now())
        .map_err(|fault| Fault::usage(chain(&fault)))?;
    if json {
        say!("{}", serde_json::to_value(&explanation).unwrap_or_default());
    } else {
        say!("{}", explanation.to_string().trim_end());
    }
    Ok(ExitCode::SUCCESS)
}
