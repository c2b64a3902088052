//! `tympan dispatcher`: run, check, explain.

mod export;
mod sockets;
mod watch;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, Method};
use tokio::sync::watch::{Receiver, channel};
use tympan_dispatcher::any::{Diagnostic, Severity, Sources, parse_file};
use tympan_dispatcher::config::{Config, Loaded};
use tympan_dispatcher::log::Log;
use tympan_dispatcher::{
    CertificateSettings, Dispatcher, FlushKeys, FrontSettings, HttpsRedirectSettings, Question,
    Runtime, Settings, Side,
};
use tympan_replicate::{Pairs, Purpose};
use tympan_web::listen::{Front, Limits, Reuse, bind};
use tympan_web::log_file::LogFile;
use tympan_web::tls::{Identity, Trust};

use crate::args;
use crate::args::DispatcherCommand;
use crate::command::instance::{Signals, main_front};
use crate::command::{CHECK_FAILED, Fault, Outcome, pair, runtime};
use crate::home::{chain, create_closed};
use crate::say;

/// The configuration's name in a home.
pub(crate) const CONFIG_FILE: &str = "dispatcher.any";

/// Runs the command.
pub(crate) fn run(arguments: args::Dispatcher) -> Outcome {
    match arguments.command {
        Some(DispatcherCommand::Convert { files, root }) => convert(&files, root.as_deref()),
        Some(DispatcherCommand::Check { file, root, json }) => check(&file, root, json),
        Some(DispatcherCommand::Diff {
            old,
            new,
            urls,
            old_settings,
            new_settings,
            root,
            json,
        }) => {
            let new_settings = new_settings.or_else(|| old_settings.clone());
            let urls = urls.map(|file| read_urls(&file)).transpose()?.unwrap_or_default();
            diff([(&old, old_settings), (&new, new_settings)], (&urls, root), json)
        }
        Some(DispatcherCommand::Export {
            file,
            farm,
            tar,
            folder,
            all,
            bare,
            time,
            root,
            json,
        }) => {
            let config = load_to_ask(&file, &sources(root))?.config;
            let what = export::What { farm: farm.as_deref(), has_stale: all, is_bare: bare, time };
            export::run(&config, &what, (tar.as_deref(), folder.as_deref()), json)
        }
        Some(DispatcherCommand::Explain { file, url, root, settings, method, header, json }) => {
            let config = load_to_ask(&file, &sources(root))?.config;
            let settings = match settings {
                Some(file) => crate::config::read_file(&file)?.dispatcher,
                None => Settings::default(),
            };
            explain((&config, &settings), &url, (&method, &header), json)
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
            let settings = match arguments.settings {
                Some(file) => SettingsFile::Needed(file),
                None => in_home().map_or(SettingsFile::None, SettingsFile::found_at),
            };
            let files = Files { config, settings };
            let in_home = |name| home.as_ref().map(|home| home.join(name));
            let place = Place {
                listen: arguments.listen,
                logs: in_home("logs"),
                pairs: in_home(pair::FOLDER),
                hand_over: arguments.hand_over.or_else(|| in_home("dispatcher.sock")),
            };
            run_until_signal(&files, &place)
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
    settings: SettingsFile,
}

/// A file with the section `[dispatcher]`.
#[derive(Debug, Clone)]
enum SettingsFile {
    None,
    /// Without it there would be other rules than those that were meant.
    Needed(PathBuf),
    /// It was not there at the start, and counts once it is.
    Awaited(PathBuf),
}

impl SettingsFile {
    /// Takes the file at a usual place.
    fn found_at(file: PathBuf) -> Self {
        if file.exists() { Self::Needed(file) } else { Self::Awaited(file) }
    }
}

impl Files {
    /// Reads both files, and returns all files that they consist of.
    fn read(&self) -> Result<(Loaded, crate::config::Config, Vec<PathBuf>), Fault> {
        let loaded = load(&self.config, &sources(None))?;
        let mut all = loaded.files.clone();
        let rest = match &self.settings {
            SettingsFile::Needed(file) | SettingsFile::Awaited(file) => {
                all.push(file.clone());
                let is_there = matches!(self.settings, SettingsFile::Needed(_)) || file.exists();
                is_there.then(|| crate::config::read_file(file)).transpose()?.unwrap_or_default()
            }
            SettingsFile::None => crate::config::Config::default(),
        };
        all.extend(front_settings(&rest).files().map(Path::to_owned));
        all.extend(rest.dispatcher.renders.files().map(Path::to_owned));
        Ok((loaded, rest, all))
    }
}

/// Where a dispatcher listens, logs, and hands over to its successor.
#[derive(Debug)]
struct Place {
    listen: SocketAddr,
    logs: Option<PathBuf>,
    /// The folder with the pairs that may flush.
    pairs: Option<PathBuf>,
    hand_over: Option<PathBuf>,
}

/// Returns what stands in `[dispatcher.front]`, with the certificate of `[listen]` before the others.
fn front_settings(rest: &crate::config::Config) -> FrontSettings {
    let mut settings = rest.dispatcher.front.clone();
    if let (Some(chain), Some(key)) = (&rest.listen.tls_certificate, &rest.listen.tls_key) {
        let own = CertificateSettings { chain: chain.clone(), key: key.clone() };
        settings.certificate.insert(0, own);
    }
    settings
}

/// Reads a configuration to serve with.
///
/// # Errors
/// With all findings if any forbids to serve.
fn load(file: &Path, sources: &Sources) -> Result<Loaded, Fault> {
    let loaded = load_to_ask(file, sources)?;
    for finding in &loaded.diagnostics {
        tracing::warn!(reason = %finding, "dispatcher configuration");
    }
    Ok(loaded)
}

/// Reads a configuration to answer a question about it: its warnings belong to whoever checks or serves it.
fn load_to_ask(file: &Path, sources: &Sources) -> Result<Loaded, Fault> {
    let loaded = Config::load(file, sources);
    if loaded.has_errors() {
        let findings: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
        return Err(Fault::usage(findings.join("\n")));
    }
    Ok(loaded)
}

/// A dispatcher beside other roles in one process, with its sockets.
pub(crate) struct Opened {
    /// Where visitors come.
    pub(crate) address: SocketAddr,
    /// Where it is watched, if it is.
    pub(crate) admin_address: Option<SocketAddr>,
    dispatcher: Dispatcher,
    listener: std::net::TcpListener,
    admin: Option<std::net::TcpListener>,
    https_redirect: Option<(HttpsRedirectSettings, std::net::TcpListener)>,
    front: Front,
    files: Files,
    all: Vec<PathBuf>,
}

/// Opens a dispatcher and its sockets, with the `tympan.toml` that stands beside its configuration. With a folder for logs it
/// writes `dispatcher.log` and `access.log` there.
///
/// # Errors
/// With the role and address if a socket is taken, or with the configuration's findings.
pub(crate) fn open(
    config: &Path,
    listen: SocketAddr,
    logs: Option<&Path>,
) -> Result<Opened, Fault> {
    let settings = SettingsFile::found_at(config.with_file_name("tympan.toml"));
    let files = Files { config: config.to_owned(), settings };
    let (loaded, rest, all) = files.read()?;
    let front = front_of(&rest)?;
    let bound = |address| {
        bind(address, Reuse::Exclusive)
            .map_err(|error| Fault::cannot_run(format!("dispatcher: {}", chain(&error))))
    };
    let listener = bound(listen)?;
    let admin = rest.dispatcher.admin.address.map(bound).transpose()?;
    let pairs = config.with_file_name(pair::FOLDER);
    let redirecting = rest.dispatcher.https_redirect.clone();
    let https_redirect = redirecting.address.map(bound).transpose()?;
    let dispatcher = open_with(loaded.config, &rest.dispatcher, (logs, Some(&pairs)))?;
    Ok(Opened {
        address: listener.local_addr().unwrap_or(listen),
        admin_address: admin.as_ref().and_then(|admin| admin.local_addr().ok()),
        dispatcher,
        listener,
        admin,
        https_redirect: https_redirect.map(|listener| (redirecting, listener)),
        front,
        files,
        all,
    })
}

impl Opened {
    /// Returns `http` or `https`.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.front.tls.is_some() { "https" } else { "http" }
    }

    /// Serves until `stopped` turns true, and reads changed files again meanwhile.
    ///
    /// # Errors
    /// If the socket fails.
    pub(crate) async fn serve(self, stopped: Receiver<bool>) -> Result<(), Fault> {
        let Self { dispatcher, listener, admin, https_redirect, front, files, all, .. } = self;
        if let Some(admin) = admin {
            tokio::spawn(serve_admin(dispatcher.clone(), admin, stopped.clone()));
        }
        if let Some(https_redirect) = https_redirect {
            tokio::spawn(redirect_to_https(dispatcher.clone(), https_redirect, stopped.clone()));
        }
        let served = (dispatcher.clone(), front.clone());
        let following = tokio::spawn(watch::Watcher::of_files().run(files, all, served));
        let outcome = serve_by(dispatcher, listener, front, stopped).await;
        following.abort();
        outcome
    }
}

fn open_with(
    config: Config,
    settings: &Settings,
    (logs, pairs): (Option<&Path>, Option<&Path>),
) -> Result<Dispatcher, Fault> {
    let flush_keys = pairs.map_or_else(FlushKeys::default, flush_keys);
    let trust = trust(&config, settings)?;
    let runtime = Runtime { trust, flush_keys, ..runtime_with(logs)? };
    Dispatcher::with_settings(config, settings, runtime)
        .map_err(|error| Fault::usage(chain(&error)))
}

/// Returns whom renders are believed to be signed by, if any speaks TLS.
fn trust(config: &Config, settings: &Settings) -> Result<Option<Trust>, Fault> {
    let mut asked = config.farms.iter().flat_map(|farm| {
        let shadow = farm.shadow.iter().flat_map(|(_, renders)| renders);
        farm.renders.iter().chain(&farm.siblings).chain(shadow)
    });
    let is_secure = asked.any(|one| one.is_secure);
    let failed = |error: tympan_web::Error| Fault::usage(chain(&error));
    let read = |file: &Path| {
        std::fs::read(file)
            .map_err(|error| Fault::usage(format!("cannot read `{}`: {error}", file.display())))
    };
    let trust = match (&settings.renders.roots, &settings.renders.certificate) {
        (Some(roots), Some(own)) => {
            let own = Identity::from_pem(&read(&own.chain)?, &read(&own.key)?).map_err(failed)?;
            Trust::with_identity(&read(roots)?, &own)
        }
        (Some(roots), None) => Trust::from_pem(&read(roots)?),
        (None, Some(_)) => {
            return Err(Fault::usage("`certificate` in `[dispatcher.renders]` needs `roots`"));
        }
        (None, None) if is_secure => Trust::system(),
        (None, None) => return Ok(None),
    };
    trust.map(Some).map_err(failed)
}

/// Lets whoever shows the key of a pair for flushing flush.
fn flush_keys(pairs: &Path) -> FlushKeys {
    let pairs = Pairs::at(pairs.to_owned());
    FlushKeys::new(move |key| pairs.admit(key, Purpose::Flush))
}

/// Opens the logs of a dispatcher.
fn runtime_with(logs: Option<&Path>) -> Result<Runtime, Fault> {
    let Some(logs) = logs else { return Ok(Runtime::default()) };
    let failed = |error: &dyn std::error::Error| Fault::cannot_run(chain(error));
    create_closed(logs).map_err(|error| failed(&error))?;
    let log = LogFile::open(&logs.join("dispatcher.log")).map_err(|error| failed(&error))?;
    let access_log = LogFile::open(&logs.join("access.log")).map_err(|error| failed(&error))?;
    Ok(Runtime {
        log: Log { file: Some(log), ..Log::default() },
        access_log: Some(access_log),
        ..Runtime::default()
    })
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

fn run_until_signal(files: &Files, place: &Place) -> Outcome {
    runtime(256)?.block_on(async {
        let mut signals = Signals::listen()?;
        let reload = watch::Watcher::listen()?;
        let (loaded, rest, all) = files.read()?;
        let front = front_of(&rest)?;
        let redirecting = rest.dispatcher.https_redirect.clone();
        let others = sockets::Others {
            admin: rest.dispatcher.admin.address,
            https_redirect: redirecting.address,
        };
        let sockets = sockets::Sockets::find(place, others)?;
        let dispatcher = open_with(
            loaded.config,
            &rest.dispatcher,
            (place.logs.as_deref(), place.pairs.as_deref()),
        )?;
        // Only now, as whoever serves until here has to go on if something above fails.
        let sockets = sockets.take().await?;
        let address = sockets.visitors.local_addr().unwrap_or(place.listen);
        let (stop, stopped) = channel(false);
        if let Some(listener) = sockets.admin {
            let address =
                listener.local_addr().map_err(|error| Fault::cannot_run(error.to_string()))?;
            tokio::spawn(serve_admin(dispatcher.clone(), listener, stopped.clone()));
            say!("dispatcher is watched on http://{address}");
        }
        if let Some(listener) = sockets.https_redirect {
            let address =
                listener.local_addr().map_err(|error| Fault::cannot_run(error.to_string()))?;
            let redirecting = (redirecting, listener);
            tokio::spawn(redirect_to_https(dispatcher.clone(), redirecting, stopped.clone()));
            say!("dispatcher redirects http://{address} to https");
        }
        tokio::spawn(reload.run(files.clone(), all, (dispatcher.clone(), front.clone())));
        let scheme = if front.tls.is_some() { "https" } else { "http" };
        let drain = front.drain.clone();
        let served = tokio::spawn(serve_by(dispatcher.clone(), sockets.visitors, front, stopped));
        say!("dispatcher listens on {scheme}://{address}");
        say!("ready");
        let relieved = sockets.offer.map(|offer| offer.wait(dispatcher, drain, stop.clone()));
        let relieved = async {
            match relieved {
                Some(relieved) => relieved.await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(served);
        tokio::select! {
            ended = &mut served => ended.map_err(|error| Fault::cannot_run(chain(&error)))??,
            () = async { tokio::select! { () = signals.wait() => {}, () = relieved => {} } } => {
                stop.send_replace(true);
                served.await.map_err(|error| Fault::cannot_run(chain(&error)))??;
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns how visitors are served.
fn front_of(rest: &crate::config::Config) -> Result<Front, Fault> {
    let front = main_front(rest, Limits::default().body_bytes)?;
    front_settings(rest).complete(front).map_err(|error| Fault::usage(chain(&error)))
}

/// Serves those who watch the dispatcher until `stopped` turns true.
async fn serve_admin(
    dispatcher: Dispatcher,
    listener: std::net::TcpListener,
    mut stopped: Receiver<bool>,
) {
    let until = async move {
        stopped.wait_for(|stopped| *stopped).await.ok();
    };
    let limits = Limits {
        max_connections: 64,
        header_bytes: 16 * 1024,
        body_bytes: 64 * 1024,
        drain_timeout: Duration::from_secs(1),
        ..Limits::default()
    };
    if let Err(error) = dispatcher.serve_admin(listener, limits.into(), until).await {
        tracing::error!(reason = %chain(&error), "the dispatcher can no longer be watched");
    }
}

/// Sends those who come without TLS to `https` until `stopped` turns true.
async fn redirect_to_https(
    dispatcher: Dispatcher,
    (settings, listener): (HttpsRedirectSettings, std::net::TcpListener),
    mut stopped: Receiver<bool>,
) {
    let until = async move {
        stopped.wait_for(|stopped| *stopped).await.ok();
    };
    let limits = Limits {
        header_bytes: 16 * 1024,
        drain_timeout: Duration::from_secs(1),
        ..Limits::default()
    };
    let served = dispatcher.serve_https_redirect(settings, listener, limits.into(), until).await;
    if let Err(error) = served {
        tracing::error!(reason = %chain(&error), "visitors without TLS are no longer redirected");
    }
}

fn convert(files: &[PathBuf], root: Option<&Path>) -> Outcome {
    let mut texts = Vec::new();
    for file in files {
        let bytes = std::fs::read(file)
            .map_err(|error| Fault::usage(format!("cannot read `{}`: {error}", file.display())))?;
        texts.push((file.as_path(), String::from_utf8_lossy(&bytes).into_owned()));
    }
    let texts: Vec<(&Path, &str)> =
        texts.iter().map(|(file, text)| (*file, text.as_str())).collect();
    let converted = tympan_dispatcher::convert(&texts, root);
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

/// Reads the URLs of a list or an access log.
fn read_urls(file: &Path) -> Result<Vec<String>, Fault> {
    let bytes = std::fs::read(file)
        .map_err(|error| Fault::usage(format!("cannot read `{}`: {error}", file.display())))?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().flat_map(tympan_dispatcher::urls_of_line).collect())
}

fn diff(
    sides: [(&Path, Option<PathBuf>); 2],
    (urls, root): (&[String], Option<PathBuf>),
    json: bool,
) -> Outcome {
    let sources = sources(root);
    let read = |(file, settings): (&Path, Option<PathBuf>)| {
        let config = load_to_ask(file, &sources)?.config;
        let settings = match settings {
            Some(file) => crate::config::read_file(&file)?.dispatcher,
            None => Settings::default(),
        };
        Ok::<_, Fault>((parse_file(file, &sources).block, config, settings))
    };
    let [old, new] = sides;
    let (old, new) = (read(old)?, read(new)?);
    let [old, new] = [&old, &new].map(|(tree, config, settings)| Side { tree, config, settings });
    let comparison =
        tympan_dispatcher::compare(old, new, urls).map_err(|fault| Fault::usage(chain(&fault)))?;
    if json {
        say!("{}", serde_json::to_value(&comparison).unwrap_or_default());
    } else {
        comparison.keys.iter().for_each(|change| say!("{change}"));
        comparison.requests.iter().for_each(|change| say!("{change}"));
        let (keys, requests) = (comparison.keys.len(), comparison.requests.len());
        say!(
            "{keys} keys differ; {requests} of {} requests are answered in another way",
            comparison.tried
        );
    }
    let is_same = comparison.requests.is_empty();
    Ok(if is_same { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED) })
}

fn explain(
    (config, settings): (&Config, &Settings),
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
    let question = Question { method: &method, url, headers: &sent, now: SystemTime::now() };
    let explanation = tympan_dispatcher::explain(config, settings, &question)
        .map_err(|fault| Fault::usage(chain(&fault)))?;
    if json {
        say!("{}", serde_json::to_value(&explanation).unwrap_or_default());
    } else {
        say!("{}", explanation.to_string().trim_end());
    }
    Ok(ExitCode::SUCCESS)
}
