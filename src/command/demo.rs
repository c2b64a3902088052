//! `tympan demo`: author, publish and dispatcher in one process, with a site.

use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tympan_dispatcher::AdminSettings;
use tympan_home::{
    Home, create_private_dir, random_text, read_or_create_replication_key, write_private_file,
    write_secret_file,
};
use tympan_server::{DispatcherAdmin, InstanceRole};
use tympan_site::SiteNeighbors;
use tympan_terminal::{CommandFault, CommandOutcome, say};

use crate::args::DemoArgs;
use crate::command::demo_portal::{BookingSystem, USERS_FILE, create_customers};
use crate::command::dispatcher::{self as dispatching, DISPATCHER_CONFIG_FILE};
use crate::command::instance::{InstancePlan, RunningInstance, start_instance};
use crate::command::process_signals::ProcessSignals;
use crate::command::runtime::create_runtime;
use crate::command::site_fault::{check_page_headers, site_fault};
use crate::home::{ADMIN_USER, ConfiguredHome, close_home, create_admin, open_home};
use crate::home_fault::home_fault;

/// The maximum number of threads for rendering and editing in both instances together, and for files.
const MAX_BLOCKING_THREADS: usize = 512;

/// The file in the author's home with a one-time login link, written if there is no terminal to print it to.
const LOGIN_LINK_FILE: &str = "login-link";

/// Runs the demo until a signal.
pub(crate) fn run_demo(arguments: &DemoArgs) -> CommandOutcome {
    check_addresses_free(arguments)?;
    read_or_create_replication_key(&arguments.home).map_err(home_fault)?;
    write_publisher_config(arguments)?;
    let mut author = open_home(&arguments.home.join("author"))?;
    let mut publish = open_home(&arguments.home.join("publish"))?;
    let is_first_start = !has_content(&author.home)?;
    if is_first_start || !has_content(&publish.home)? {
        import_site_if_empty(arguments, &[&author.home, &publish.home])?;
    }
    let password = create_admin(&author.home)?;
    let config = write_dispatcher_config(arguments)?;
    // Other sites have their own back ends.
    let is_sample = home_page(arguments.site.as_deref())? == home_page(None)?;
    let booking = match is_sample {
        false => None,
        true => {
            create_admin(&publish.home)?;
            create_customers(&publish.home, &arguments.home)?;
            Some(BookingSystem::bind(&mut [&mut author.config, &mut publish.config])?)
        }
    };
    let greeting = DemoStartupInfo { password, booking_system: booking };
    create_runtime(MAX_BLOCKING_THREADS)?
        .block_on(serve_demo(arguments, &author, &publish, &config, greeting))?;
    close_home(&author.home)?;
    close_home(&publish.home)?;
    Ok(ExitCode::SUCCESS)
}

/// Checks that all addresses are free before the import, which takes time.
fn check_addresses_free(arguments: &DemoArgs) -> Result<(), CommandFault> {
    let roles = [
        ("author", arguments.author),
        ("publish", arguments.publish),
        ("dispatcher", arguments.dispatcher),
    ];
    for (role, address) in roles {
        let address_fault = |error: &dyn std::error::Error| {
            CommandFault::cannot_run(format!(
                "{role}: {}",
                tympan_terminal::error_chain_text(error)
            ))
        };
        drop(
            tympan_web::listen::bind_listener(address, tympan_web::listen::PortReuse::Exclusive)
                .map_err(|error| address_fault(&error))?,
        );
    }
    Ok(())
}

fn has_content(home: &Home) -> Result<bool, CommandFault> {
    let fault = |error: tympan_content::Error| {
        CommandFault::cannot_run(tympan_terminal::error_chain_text(&error))
    };
    let snapshot = home.repository.snapshot().map_err(fault)?;
    let path = tympan_content::NodePath::new("/content").map_err(fault)?;
    Ok(snapshot.node(&path).map_err(fault)?.is_some())
}

/// Imports the site into homes that have none.
fn import_site_if_empty(arguments: &DemoArgs, homes: &[&Home]) -> Result<(), CommandFault> {
    let neighbors = SiteNeighbors {
        publish_url: format!("http://{}", arguments.publish),
        dispatcher_url: format!("http://{}", arguments.dispatcher),
    };
    let home_page = home_page(arguments.site.as_deref())?;
    for home in homes {
        if has_content(home)? {
            continue;
        }
        let package = tympan_site::read_site_package(arguments.site.as_deref());
        let mut package = package.map_err(site_fault)?;
        let name = home
            .dir
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let bar = ProgressBar::new(1).with_style(install_progress_style());
        bar.set_message(format!("importing the site into {name}"));
        let imported = tympan_site::import_site(
            &home.repository,
            &mut package,
            &neighbors,
            home_page.as_deref(),
            &mut |done, total| {
                bar.set_length(total as u64);
                bar.set_position(done as u64);
            },
        );
        imported.map_err(site_fault)?;
        bar.finish_and_clear();
        say!("{name}: imported the site");
    }
    Ok(())
}

fn home_page(site: Option<&Path>) -> Result<Option<String>, CommandFault> {
    tympan_site::home_page_path(site).map_err(site_fault)
}

/// Returns the progress style of an installation.
pub(super) fn install_progress_style() -> ProgressStyle {
    let template = "{msg} {wide_bar} {pos}/{len} nodes, {per_sec}, {eta} left";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Writes the configuration of a publisher that does not exist yet, if its site names headers of its pages.
fn write_publisher_config(arguments: &DemoArgs) -> Result<(), CommandFault> {
    let home = arguments.home.join("publish");
    let is_new = std::fs::read_dir(&home).map_or(true, |mut entries| entries.next().is_none());
    let text = tympan_site::publisher_config(arguments.site.as_deref(), &check_page_headers);
    let Some(text) = text.map_err(site_fault)?.filter(|_| is_new) else {
        return Ok(());
    };
    let file = home.join("tympan.toml");
    create_private_dir(&home).and_then(|()| write_private_file(&file, text.as_bytes())).map_err(
        |error| CommandFault::cannot_run(format!("cannot write `{}`: {error}", file.display())),
    )
}

/// Writes the dispatcher's configuration and creates its cache folder, unless there is a configuration already.
fn write_dispatcher_config(arguments: &DemoArgs) -> Result<PathBuf, CommandFault> {
    let home = arguments.home.join("dispatcher");
    let cache = home.join("cache");
    let file = home.join(DISPATCHER_CONFIG_FILE);
    let failed = |error: std::io::Error| {
        CommandFault::cannot_run(format!("cannot write `{}`: {error}", file.display()))
    };
    std::fs::create_dir_all(&cache).map_err(failed)?;
    let cache = cache.canonicalize().map_err(failed)?;
    if !file.exists() {
        std::fs::write(&file, demo_config(arguments.publish, &cache)).map_err(failed)?;
    }
    Ok(file)
}

/// Returns the initial dispatcher configuration of the demo.
fn demo_config(publish: SocketAddr, docroot: &Path) -> String {
    include_str!("demo.any")
        .replace("@HOST@", &publish.ip().to_string())
        .replace("@PORT@", &publish.port().to_string())
        .replace("@DOCROOT@", &docroot.display().to_string())
}

/// Returns the plan of an instance of the demo.
fn instance_plan<'a>(
    arguments: &DemoArgs,
    role: InstanceRole,
    ConfiguredHome { home, config }: &'a ConfiguredHome,
) -> InstancePlan<'a> {
    // Any free local port, so that a second demo needs no addresses besides its own.
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    InstancePlan {
        role,
        home,
        config,
        listen: match role {
            InstanceRole::Author => arguments.author,
            InstanceRole::Publish => arguments.publish,
        },
        admin_listen: Some(config.admin.address.unwrap_or(loopback)),
        key_dir: arguments.home.clone(),
        site: arguments.site.clone(),
        is_asset_worker: false,
    }
}

/// Returns the admin listener of the dispatcher: any free local port, and a token for this run, which the author gets.
fn dispatcher_admin() -> Result<AdminSettings, CommandFault> {
    Ok(AdminSettings {
        address: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        token: Some(random_text().map_err(home_fault)?),
    })
}

/// Startup information that only this run has.
struct DemoStartupInfo {
    /// The password of the first user, if it was created now.
    password: Option<String>,
    /// The back end of the sample site's portal.
    booking_system: Option<BookingSystem>,
}

async fn serve_demo(
    arguments: &DemoArgs,
    author: &ConfiguredHome,
    publish: &ConfiguredHome,
    config: &Path,
    DemoStartupInfo { password, booking_system: booking }: DemoStartupInfo,
) -> Result<(), CommandFault> {
    let mut signals = ProcessSignals::listen()?.with_hangup()?;
    let mut publish_running =
        start_instance(&instance_plan(arguments, InstanceRole::Publish, publish)).await?;
    let mut author_running =
        start_instance(&instance_plan(arguments, InstanceRole::Author, author)).await?;
    let dispatcher = dispatching::open_embedded_dispatcher(
        config,
        arguments.dispatcher,
        (Some(&arguments.home.join("dispatcher/logs")), dispatcher_admin()?),
    )?;
    if let Some(address) = dispatcher.admin_address {
        author_running.add_dispatcher(DispatcherAdmin {
            name: "dispatcher".to_owned(),
            url: format!("http://{address}"),
            token: dispatcher.admin_token.clone(),
        });
    }
    let visitors = format!("{}://{}", dispatcher.scheme(), dispatcher.address);
    if let Some(address) = dispatcher.admin_address {
        say!("dispatcher reports its health and metrics on http://{address}");
    }
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let portal = booking.is_some().then(|| arguments.home.join(USERS_FILE));
    if let Some(booking) = booking {
        tasks.spawn(booking.serve(stopped.clone()));
    }
    tasks.spawn(dispatcher.serve(stopped));
    let running = (&author_running, &publish_running);
    print_greeting(running, &visitors, (password, portal), &author.home.dir).await?;
    let reopeners = (author_running.reload_callback(), publish_running.reload_callback());
    let reopen = || {
        reopeners.0();
        reopeners.1();
    };
    let fault = tokio::select! {
        () = signals.wait_for_end_or_hangup(reopen) => None,
        fault = author_running.wait_for_failure() => Some(fault),
        fault = publish_running.wait_for_failure() => Some(fault),
        Some(ended) = tasks.join_next() => ended.ok().and_then(Result::err),
    };
    stop.send_replace(true);
    while tasks.join_next().await.is_some() {}
    author_running.shut_down().await;
    publish_running.shut_down().await;
    fault.map_or(Ok(()), Err)
}

/// Prints where everything is.
async fn print_greeting(
    (author, publish): (&RunningInstance, &RunningInstance),
    visitors: &str,
    (password, portal): (Option<String>, Option<PathBuf>),
    author_home: &Path,
) -> Result<(), CommandFault> {
    let link = author.logins.create_login_link(ADMIN_USER, SystemTime::now()).await;
    let link = link.map_err(|error| {
        CommandFault::cannot_run(format!("cannot create a login link: {error}"))
    })?;
    say!("visitors    {visitors}/");
    if let Some(users) = portal {
        say!("portal      {visitors}/portal.html, names and passwords in {}", users.display());
    }
    say!("publish     http://{}/", publish.address);
    say!("author      http://{}/", author.address);
    for (role, address) in [("publish", publish.admin_address), ("author", author.admin_address)] {
        if let Some(address) = address {
            say!("monitoring  http://{address} (health and metrics of {role})");
        }
    }
    let link = format!("http://{}/login/link?token={link}", author.address);
    // Output that goes elsewhere ends up in logs, which others read.
    let is_terminal = std::io::stdout().is_terminal();
    match password {
        Some(password) if is_terminal => say!(
            "user        {ADMIN_USER}, password {password} (also in author/initial-password: change it)"
        ),
        Some(_) => say!("user        {ADMIN_USER}, password in author/initial-password: change it"),
        None => {}
    }
    if is_terminal {
        say!("log in      {link} (works once)");
    } else {
        write_secret_file(&author_home.join(LOGIN_LINK_FILE), &link).map_err(home_fault)?;
        say!("log in      with the link in author/{LOGIN_LINK_FILE} (works once)");
    }
    say!("stop with Ctrl-C");
    say!("ready");
    Ok(())
}
