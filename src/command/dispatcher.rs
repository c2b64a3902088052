//! `tympan dispatcher`: runs, checks and explains a dispatcher.

mod config_watcher;
mod export;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, Method};
use tokio::sync::watch::{Receiver, channel};
use tympan_dispatcher::any_syntax::{
    ConfigDiagnostic, ConfigSources, DiagnosticSeverity, parse_file,
};
use tympan_dispatcher::config::{DispatcherConfig, LoadedConfig};
use tympan_dispatcher::log::DispatcherLog;
use tympan_dispatcher::{
    AdminSettings, CertificateSettings, ComparedConfig, Dispatcher, DispatcherRuntime,
    DispatcherSettings, ExplainedRequest, FlushKeys, FrontSettings, HttpsRedirectSettings,
    ListenerAddresses, ListenerSocketError, ListenerSockets,
};
use tympan_home::create_private_dir;
use tympan_replicate::{HomePairs, PairKeyPurpose};
use tympan_terminal::{
    CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, error_chain_text, say,
};
use tympan_web::listen::{ListenerLimits, ListenerOptions, PortReuse, bind_listener};
use tympan_web::log_file::LogFile;

use crate::args;
use crate::args::DispatcherCommand;
use crate::command::certificate_metrics::certificate_metrics;
use crate::command::pair;
use crate::command::process_signals::ProcessSignals;
use crate::command::runtime::create_runtime;
use crate::command::service_manager;

/// The name of the configuration file in a home.
pub(crate) const DISPATCHER_CONFIG_FILE: &str = "dispatcher.any";

/// Runs the command.
pub(crate) fn run_dispatcher_command(arguments: args::DispatcherArgs) -> CommandOutcome {
    match arguments.command {
        Some(DispatcherCommand::Convert { files, root }) => {
            convert_configs(&files, root.as_deref())
        }
        Some(DispatcherCommand::Check { file, root, json }) => check_config(&file, root, json),
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
            let sides = [
                ConfigFiles { config: old, settings: old_settings },
                ConfigFiles { config: new, settings: new_settings },
            ];
            diff_configs(sides, &urls, root, json)
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
            let config = load_for_query(&file, &environment_sources(root))?.config;
            let options = export::CacheExportOptions {
                farm: farm.as_deref(),
                includes_stale: all,
                is_bodies_only: bare,
                time,
            };
            export::run_cache_export(&config, &options, tar.as_deref(), folder.as_deref(), json)
        }
        Some(DispatcherCommand::Explain { file, url, root, settings, method, header, json }) => {
            let config = load_for_query(&file, &environment_sources(root))?.config;
            let settings = read_settings(settings.as_deref())?;
            let method: Method = method
                .parse()
                .map_err(|_| CommandFault::usage(format!("`{method}` is not an HTTP method")))?;
            let question = ExplainedRequest {
                method: &method,
                url: &url,
                headers: &parse_headers(&header)?,
                now: SystemTime::now(),
            };
            explain_request(&config, &settings, &question, json)
        }
        None => {
            tympan_web::passed_socket::register_passed_sockets();
            let (config, home) = match (arguments.config, arguments.home) {
                (Some(file), _) => (file, None),
                (None, Some(home)) => (home.join(DISPATCHER_CONFIG_FILE), Some(home)),
                (None, None) => {
                    return Err(CommandFault::usage(
                        "no configuration: give --config FILE.any or --home DIR",
                    ));
                }
            };
            let in_home = || home.as_ref().map(|home| home.join("tympan.toml"));
            let settings = match arguments.settings {
                Some(file) => DispatcherSettingsFile::Required(file),
                None => in_home().map_or(
                    DispatcherSettingsFile::NotConfigured,
                    DispatcherSettingsFile::at_default_path,
                ),
            };
            let default_admin = AdminSettings::default();
            let files = DispatcherConfigFiles { config, settings, default_admin };
            let in_home = |name| home.as_ref().map(|home| home.join(name));
            let placement = DispatcherPlacement {
                listen_address: arguments.listen,
                log_dir: in_home("logs"),
                pairs_dir: in_home(pair::PAIRS_FOLDER),
                handover_socket: arguments.hand_over.or_else(|| in_home("dispatcher.sock")),
            };
            serve_until_signal(&files, &placement)
        }
    }
}

/// Returns sources that resolve `${NAME}` in configurations with environment variables.
fn environment_sources(root: Option<PathBuf>) -> ConfigSources {
    ConfigSources { environment: std::env::vars().collect(), root }
}

/// The configuration files of a dispatcher.
#[derive(Debug, Clone)]
struct DispatcherConfigFiles {
    config: PathBuf,
    settings: DispatcherSettingsFile,
    /// The admin listener, where the settings do not configure one.
    default_admin: AdminSettings,
}

/// A file with the section `[dispatcher]`.
#[derive(Debug, Clone)]
enum DispatcherSettingsFile {
    NotConfigured,
    /// The file must exist: without it, other rules than the intended ones would apply.
    Required(PathBuf),
    /// The file did not exist at the start, and applies as soon as it does.
    Optional(PathBuf),
}

impl DispatcherSettingsFile {
    /// Returns the settings file at a default path.
    fn at_default_path(file: PathBuf) -> Self {
        if file.exists() { Self::Required(file) } else { Self::Optional(file) }
    }
}

impl DispatcherConfigFiles {
    /// Reads both files, and returns the list of all files that they include.
    fn read_all(
        &self,
    ) -> Result<(LoadedConfig, crate::config::TympanConfig, Vec<PathBuf>), CommandFault> {
        let loaded = load_for_serving(&self.config, &environment_sources(None))?;
        let mut all = loaded.files.clone();
        let mut rest = match &self.settings {
            DispatcherSettingsFile::Required(file) | DispatcherSettingsFile::Optional(file) => {
                all.push(file.clone());
                let is_there =
                    matches!(self.settings, DispatcherSettingsFile::Required(_)) || file.exists();
                is_there
                    .then(|| crate::config::read_config_file(file))
                    .transpose()?
                    .unwrap_or_default()
            }
            DispatcherSettingsFile::NotConfigured => crate::config::TympanConfig::default(),
        };
        let admin = &mut rest.dispatcher.admin;
        admin.address = admin.address.or(self.default_admin.address);
        admin.token = admin.token.take().or_else(|| self.default_admin.token.clone());
        all.extend(front_settings(&rest).files().map(Path::to_owned));
        all.extend(rest.dispatcher.renders.files().map(Path::to_owned));
        Ok((loaded, rest, all))
    }
}

/// The listen addresses, the logs and the handover socket of a dispatcher.
#[derive(Debug)]
struct DispatcherPlacement {
    /// The address of the command line, which takes precedence over the one of `[listen]`.
    listen_address: Option<SocketAddr>,
    log_dir: Option<PathBuf>,
    /// The folder with the pairs that are allowed to flush.
    pairs_dir: Option<PathBuf>,
    handover_socket: Option<PathBuf>,
}

/// Returns the settings of `[dispatcher.front]`, with the certificate of `[listen]` first.
fn front_settings(rest: &crate::config::TympanConfig) -> FrontSettings {
    let mut settings = rest.dispatcher.front.clone();
    if let (Some(chain), Some(key)) = (&rest.listen.tls_certificate, &rest.listen.tls_key) {
        let own = CertificateSettings { chain: chain.clone(), key: key.clone() };
        settings.certificate.insert(0, own);
    }
    settings
}

/// Loads a configuration for serving.
///
/// # Errors
/// With all findings if any is an error.
fn load_for_serving(file: &Path, sources: &ConfigSources) -> Result<LoadedConfig, CommandFault> {
    let loaded = load_for_query(file, sources)?;
    for finding in &loaded.diagnostics {
        tracing::warn!(reason = %finding, "dispatcher configuration warning");
    }
    Ok(loaded)
}

/// Loads a configuration for a query; warnings are left to checks and to serving.
fn load_for_query(file: &Path, sources: &ConfigSources) -> Result<LoadedConfig, CommandFault> {
    let loaded = DispatcherConfig::load(file, sources);
    if loaded.has_errors() {
        let findings: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
        return Err(CommandFault::usage(findings.join("\n")));
    }
    Ok(loaded)
}

/// A dispatcher that runs in one process with other roles, with its sockets.
pub(crate) struct EmbeddedDispatcher {
    /// The address for visitors.
    pub(crate) address: SocketAddr,
    /// The address of the admin listener, if any.
    pub(crate) admin_address: Option<SocketAddr>,
    /// The token of the admin listener, if any.
    pub(crate) admin_token: Option<String>,
    dispatcher: Dispatcher,
    listener: std::net::TcpListener,
    admin: Option<std::net::TcpListener>,
    https_redirect: Option<(HttpsRedirectSettings, std::net::TcpListener)>,
    front: ListenerOptions,
    files: DispatcherConfigFiles,
    watched_files: Vec<PathBuf>,
}

/// Opens a dispatcher and its sockets, with the `tympan.toml` next to its configuration. With a folder for logs it
/// writes `dispatcher.log` and `access.log` there. The admin listener is `default_admin` where the settings have none.
///
/// # Errors
/// With the role and address if a socket is in use, or with the configuration's findings.
pub(crate) fn open_embedded_dispatcher(
    config: &Path,
    listen: SocketAddr,
    (logs, default_admin): (Option<&Path>, AdminSettings),
) -> Result<EmbeddedDispatcher, CommandFault> {
    let settings = DispatcherSettingsFile::at_default_path(config.with_file_name("tympan.toml"));
    let files = DispatcherConfigFiles { config: config.to_owned(), settings, default_admin };
    let (loaded, rest, all) = files.read_all()?;
    let front = front_from_config(&rest)?;
    let bound = |address| {
        bind_listener(address, PortReuse::Exclusive).map_err(|error| {
            CommandFault::cannot_run(format!("dispatcher: {}", error_chain_text(&error)))
        })
    };
    let listener = bound(listen)?;
    let admin = rest.dispatcher.admin.address.map(bound).transpose()?;
    let pairs = config.with_file_name(pair::PAIRS_FOLDER);
    let redirecting = rest.dispatcher.https_redirect.clone();
    let https_redirect = redirecting.address.map(bound).transpose()?;
    let dispatcher = open_dispatcher(loaded.config, &rest.dispatcher, logs, Some(&pairs))?;
    add_metrics_sources(&dispatcher, &files.settings);
    Ok(EmbeddedDispatcher {
        address: listener.local_addr().unwrap_or(listen),
        admin_address: admin.as_ref().and_then(|admin| admin.local_addr().ok()),
        admin_token: rest.dispatcher.admin.token.clone(),
        dispatcher,
        listener,
        admin,
        https_redirect: https_redirect.map(|listener| (redirecting, listener)),
        front,
        files,
        watched_files: all,
    })
}

impl EmbeddedDispatcher {
    /// Returns `http` or `https`.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.front.tls.is_some() { "https" } else { "http" }
    }

    /// Serves until `stopped` turns true, and reloads changed files.
    ///
    /// # Errors
    /// If the socket fails.
    pub(crate) async fn serve(self, stopped: Receiver<bool>) -> Result<(), CommandFault> {
        let Self {
            dispatcher,
            listener,
            admin,
            https_redirect,
            front,
            files,
            watched_files: all,
            ..
        } = self;
        if let Some(admin) = admin {
            tokio::spawn(serve_admin(dispatcher.clone(), admin, stopped.clone()));
        }
        if let Some((settings, listener)) = https_redirect {
            tokio::spawn(redirect_to_https(
                dispatcher.clone(),
                settings,
                listener,
                stopped.clone(),
            ));
        }
        let reload = config_watcher::ConfigReloadWatcher::without_hangup();
        let following = tokio::spawn(reload.run(files, all, dispatcher.clone(), front.clone()));
        let outcome = serve_front(dispatcher, listener, front, stopped).await;
        following.abort();
        outcome
    }
}

fn open_dispatcher(
    config: DispatcherConfig,
    settings: &DispatcherSettings,
    logs: Option<&Path>,
    pairs: Option<&Path>,
) -> Result<Dispatcher, CommandFault> {
    let flush_keys = pairs.map_or_else(FlushKeys::default, flush_keys);
    let trust = settings.renders.read_trust(&config);
    let trust = trust.map_err(|error| CommandFault::usage(error_chain_text(&error)))?;
    let runtime = DispatcherRuntime { trust, flush_keys, ..runtime_with_logs(logs)? };
    Dispatcher::with_settings(config, settings, runtime)
        .map_err(|error| CommandFault::usage(error_chain_text(&error)))
}

/// Adds the metrics of the process and of the certificates. The settings are read again each time, as they may have been
/// reloaded.
fn add_metrics_sources(dispatcher: &Dispatcher, settings: &DispatcherSettingsFile) {
    dispatcher.add_metrics_source(tympan_server::process_metrics);
    let (DispatcherSettingsFile::Required(file) | DispatcherSettingsFile::Optional(file)) =
        settings
    else {
        return;
    };
    let file = file.clone();
    dispatcher.add_metrics_source(move || {
        // Not by `read_config_file`, which would warn of the same keys each time.
        let settings: crate::config::TympanConfig =
            tympan_home::read_toml_file(&file).unwrap_or_default();
        let certificates = front_settings(&settings).certificate;
        certificate_metrics(certificates.into_iter().map(|certificate| certificate.chain))
    });
}

/// Accepts flush requests with the key of a flush pair.
fn flush_keys(pairs: &Path) -> FlushKeys {
    let pairs = HomePairs::in_dir(pairs.to_owned());
    FlushKeys::new(move |key| pairs.check_key_for(key, PairKeyPurpose::Flush))
}

/// Opens the logs of a dispatcher.
fn runtime_with_logs(logs: Option<&Path>) -> Result<DispatcherRuntime, CommandFault> {
    let Some(logs) = logs else { return Ok(DispatcherRuntime::default()) };
    let failed = |error: &dyn std::error::Error| CommandFault::cannot_run(error_chain_text(error));
    create_private_dir(logs).map_err(|error| failed(&error))?;
    let log = LogFile::open(&logs.join("dispatcher.log")).map_err(|error| failed(&error))?;
    let access_log = LogFile::open(&logs.join("access.log")).map_err(|error| failed(&error))?;
    Ok(DispatcherRuntime {
        log: DispatcherLog { file: Some(log), ..DispatcherLog::default() },
        access_log: Some(access_log),
        ..DispatcherRuntime::default()
    })
}

async fn serve_front(
    dispatcher: Dispatcher,
    listener: std::net::TcpListener,
    front: ListenerOptions,
    mut stopped: Receiver<bool>,
) -> Result<(), CommandFault> {
    let until = async move {
        // The sender lives as long as the process serves.
        stopped.wait_for(|stopped| *stopped).await.ok();
    };
    let served = dispatcher.serve(listener, front, until).await;
    served.map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))
}

fn serve_until_signal(
    files: &DispatcherConfigFiles,
    placement: &DispatcherPlacement,
) -> CommandOutcome {
    create_runtime(256)?.block_on(async {
        let mut signals = ProcessSignals::listen()?;
        let reload = config_watcher::ConfigReloadWatcher::listen_for_hangup()?;
        let (loaded, rest, all) = files.read_all()?;
        let front = front_from_config(&rest)?;
        let redirecting = rest.dispatcher.https_redirect.clone();
        let listen = placement.listen_address.or(rest.listen.address);
        let listen = listen.unwrap_or_else(|| args::ServiceRole::Dispatcher.default_address());
        let addresses = ListenerAddresses {
            visitors: listen,
            admin: rest.dispatcher.admin.address,
            https_redirect: redirecting.address,
        };
        let socket_fault =
            |error: ListenerSocketError| CommandFault::cannot_run(error_chain_text(&error));
        let sockets = ListenerSockets::prepare(addresses, placement.handover_socket.clone())
            .map_err(socket_fault)?;
        let dispatcher = open_dispatcher(
            loaded.config,
            &rest.dispatcher,
            placement.log_dir.as_deref(),
            placement.pairs_dir.as_deref(),
        )?;
        add_metrics_sources(&dispatcher, &files.settings);
        // Only now, since the serving process must continue if one of the steps above fails.
        let sockets = sockets.acquire().await.map_err(socket_fault)?;
        let address = sockets.visitors.local_addr().unwrap_or(listen);
        let (stop, stopped) = channel(false);
        if let Some(listener) = sockets.admin {
            let address =
                listener.local_addr().map_err(|error| CommandFault::cannot_run(error.to_string()))?;
            tokio::spawn(serve_admin(dispatcher.clone(), listener, stopped.clone()));
            say!("dispatcher reports its health and metrics on http://{address}");
        }
        if let Some(listener) = sockets.https_redirect {
            let address =
                listener.local_addr().map_err(|error| CommandFault::cannot_run(error.to_string()))?;
            let redirecting =
                redirect_to_https(dispatcher.clone(), redirecting, listener, stopped.clone());
            tokio::spawn(redirecting);
            say!("dispatcher redirects http://{address} to https");
        }
        tokio::spawn(reload.run(files.clone(), all, dispatcher.clone(), front.clone()));
        let scheme = if front.tls.is_some() { "https" } else { "http" };
        let drain = front.drain.clone();
        let served = tokio::spawn(serve_front(dispatcher.clone(), sockets.visitors, front, stopped));
        say!("dispatcher listens on {scheme}://{address}");
        say!("ready");
        service_manager::report_ready("dispatcher serves");
        let relieved = sockets.offer.map(|offer| offer.hand_over(dispatcher, drain, stop.clone()));
        let relieved = async {
            match relieved {
                Some(relieved) => relieved.await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(served);
        tokio::select! {
            ended = &mut served => ended.map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))??,
            () = async { tokio::select! { () = signals.wait_for_end() => {}, () = relieved => {} } } => {
                service_manager::report_stopping();
                stop.send_replace(true);
                served.await.map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))??;
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns the options of the main listener.
fn front_from_config(rest: &crate::config::TympanConfig) -> Result<ListenerOptions, CommandFault> {
    let certificate = rest.listen.read_certificate().map_err(CommandFault::usage)?;
    let body_bytes = ListenerLimits::default().max_body_bytes;
    let front = rest.listen.listener_options(certificate.as_ref(), body_bytes);
    front_settings(rest)
        .apply_to(front)
        .map_err(|error| CommandFault::usage(error_chain_text(&error)))
}

/// Serves the admin listener until `stopped` turns true.
async fn serve_admin(
    dispatcher: Dispatcher,
    listener: std::net::TcpListener,
    mut stopped: Receiver<bool>,
) {
    let until = async move {
        stopped.wait_for(|stopped| *stopped).await.ok();
    };
    let limits = ListenerLimits {
        max_connections: 64,
        max_header_bytes: 16 * 1024,
        max_body_bytes: 64 * 1024,
        drain_timeout: Duration::from_secs(1),
        ..ListenerLimits::default()
    };
    if let Err(error) = dispatcher.serve_admin(listener, limits.into(), until).await {
        tracing::error!(reason = %error_chain_text(&error), "the admin listener of the dispatcher failed");
    }
}

/// Redirects requests without TLS to `https` until `stopped` turns true.
async fn redirect_to_https(
    dispatcher: Dispatcher,
    settings: HttpsRedirectSettings,
    listener: std::net::TcpListener,
    mut stopped: Receiver<bool>,
) {
    let until = async move {
        stopped.wait_for(|stopped| *stopped).await.ok();
    };
    let limits = ListenerLimits {
        max_header_bytes: 16 * 1024,
        drain_timeout: Duration::from_secs(1),
        ..ListenerLimits::default()
    };
    let served = dispatcher.serve_https_redirect(settings, listener, limits.into(), until).await;
    if let Err(error) = served {
        tracing::error!(reason = %error_chain_text(&error), "the HTTPS redirect listener failed");
    }
}

fn convert_configs(files: &[PathBuf], root: Option<&Path>) -> CommandOutcome {
    let mut texts = Vec::new();
    for file in files {
        let bytes = std::fs::read(file).map_err(|error| {
            CommandFault::usage(format!("cannot read `{}`: {error}", file.display()))
        })?;
        texts.push((file.as_path(), String::from_utf8_lossy(&bytes).into_owned()));
    }
    let texts: Vec<(&Path, &str)> =
        texts.iter().map(|(file, text)| (*file, text.as_str())).collect();
    let converted = tympan_dispatcher::convert_httpd_config(&texts, root);
    say!("{}", converted.toml.trim_end());
    print_diagnostics(&converted.diagnostics);
    Ok(diagnostics_exit_code(&converted.diagnostics))
}

#[expect(clippy::print_stderr, reason = "standard output holds the converted text")]
fn print_diagnostics(findings: &[ConfigDiagnostic]) {
    for finding in findings {
        eprintln!("{finding}");
    }
}

/// Returns failure if there are errors; warnings do not fail a check.
fn diagnostics_exit_code(findings: &[ConfigDiagnostic]) -> ExitCode {
    let has_error = findings.iter().any(|finding| finding.severity == DiagnosticSeverity::Error);
    if has_error { ExitCode::from(CHECK_FAILED_EXIT_CODE) } else { ExitCode::SUCCESS }
}

fn check_config(file: &Path, root: Option<PathBuf>, json: bool) -> CommandOutcome {
    let loaded = DispatcherConfig::load_to_check(file, &environment_sources(root));
    let findings = tympan_dispatcher::check_config(&loaded);
    if json {
        let list: Vec<_> =
            findings.iter().map(|finding| serde_json::json!(finding.to_string())).collect();
        say!("{}", serde_json::Value::from(list));
    } else {
        findings.iter().for_each(|finding| say!("{finding}"));
    }
    Ok(diagnostics_exit_code(&findings))
}

/// Reads the URLs from a list or an access log.
fn read_urls(file: &Path) -> Result<Vec<String>, CommandFault> {
    let bytes = std::fs::read(file).map_err(|error| {
        CommandFault::usage(format!("cannot read `{}`: {error}", file.display()))
    })?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().flat_map(tympan_dispatcher::urls_of_line).collect())
}

/// A configuration, and the file with its section `[dispatcher]`.
struct ConfigFiles {
    config: PathBuf,
    settings: Option<PathBuf>,
}

/// Reads the settings of `[dispatcher]`; the default ones without a file.
fn read_settings(file: Option<&Path>) -> Result<DispatcherSettings, CommandFault> {
    match file {
        Some(file) => Ok(crate::config::read_config_file(file)?.dispatcher),
        None => Ok(DispatcherSettings::default()),
    }
}

fn diff_configs(
    [old, new]: [ConfigFiles; 2],
    urls: &[String],
    root: Option<PathBuf>,
    json: bool,
) -> CommandOutcome {
    let sources = environment_sources(root);
    let read = |files: &ConfigFiles| {
        let config = load_for_query(&files.config, &sources)?.config;
        let settings = read_settings(files.settings.as_deref())?;
        let syntax_tree = parse_file(&files.config, &sources).block;
        Ok::<_, CommandFault>(ComparedConfig { syntax_tree, config, settings })
    };
    let comparison = tympan_dispatcher::compare_configs(&read(&old)?, &read(&new)?, urls)
        .map_err(|fault| CommandFault::usage(error_chain_text(&fault)))?;
    if json {
        say!("{}", serde_json::to_value(&comparison).unwrap_or_default());
    } else {
        say!("{comparison}");
    }
    let is_same = comparison.requests.is_empty();
    Ok(if is_same { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED_EXIT_CODE) })
}

/// Parses the headers of a request, given as `Name: value`.
fn parse_headers(headers: &[String]) -> Result<HeaderMap, CommandFault> {
    let mut sent = HeaderMap::new();
    for header in headers {
        let malformed =
            || CommandFault::usage(format!("`{header}` is not a header; write 'Name: value'"));
        let (name, value) = header.split_once(':').ok_or_else(malformed)?;
        let name: HeaderName = name.trim().parse().map_err(|_| malformed())?;
        sent.append(name, value.trim().parse().map_err(|_| malformed())?);
    }
    Ok(sent)
}

fn explain_request(
    config: &DispatcherConfig,
    settings: &DispatcherSettings,
    question: &ExplainedRequest<'_>,
    json: bool,
) -> CommandOutcome {
    let explanation = tympan_dispatcher::explain_request(config, settings, question)
        .map_err(|fault| CommandFault::usage(error_chain_text(&fault)))?;
    if json {
        say!("{}", serde_json::to_value(&explanation).unwrap_or_default());
    } else {
        say!("{}", explanation.to_string().trim_end());
    }
    Ok(ExitCode::SUCCESS)
}
