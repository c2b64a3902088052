//! How the roles are started, and the site exported.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Args)]
#[command(after_help = "Example: tympan demo --home ./demo --dispatcher 127.0.0.1:8081")]
pub(crate) struct DemoArgs {
    /// Where everything is kept.
    #[arg(long, value_name = "DIR", default_value = "./tympan-demo")]
    pub(crate) home: PathBuf,
    /// Where the author listens.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4502")]
    pub(crate) author: SocketAddr,
    /// Where publish listens.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4503")]
    pub(crate) publish: SocketAddr,
    /// Where the dispatcher listens.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub(crate) dispatcher: SocketAddr,
    /// A site folder to use in place of the sample; its scripts are read live.
    #[arg(long, value_name = "DIR")]
    pub(crate) site: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan author --home /srv/author --listen 127.0.0.1:4502 --admin-listen 127.0.0.1:4512"
)]
pub(crate) struct InstanceArgs {
    /// Where everything is kept; `tympan.toml` in it is read.
    #[arg(long, value_name = "DIR")]
    pub(crate) home: PathBuf,
    /// Where to listen.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// Where a second listener answers health, metrics and login while the main one is saturated.
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin_listen: Option<SocketAddr>,
    /// The PostgreSQL database that the repository lies in, in place of the home's packs.
    #[arg(long, value_name = "URL", env = "TYMPAN_DATABASE", hide_env_values = true)]
    pub(crate) database: Option<String>,
    /// The bucket for large blobs, in place of those of `[blobs]`: `s3://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`.
    #[arg(long, value_name = "URL")]
    pub(crate) blobs: Option<String>,
    /// Takes the heavy work on assets from the queues that it shares with the other instances on its database, which
    /// leave it alone as long as this one lives.
    #[arg(long, value_name = "ROLE")]
    pub(crate) role: Option<AssetWorkRole>,
}

/// What a process may take off the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AssetWorkRole {
    /// Ingest, renditions and workflows of assets.
    Assets,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan dispatcher --config dispatcher.any --listen 127.0.0.1:8080"
)]
pub(crate) struct DispatcherArgs {
    #[command(subcommand)]
    pub(crate) command: Option<DispatcherCommand>,
    /// The configuration to run with.
    #[arg(long, value_name = "FILE.any")]
    pub(crate) config: Option<PathBuf>,
    /// A home that holds `dispatcher.any`.
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    pub(crate) home: Option<PathBuf>,
    /// A file with the section `[dispatcher]`; default `tympan.toml` in the home.
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) settings: Option<PathBuf>,
    /// Where to listen.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    /// A file by which a second dispatcher, started alike, takes the place of this one without a failed request; default
    /// `dispatcher.sock` in the home.
    #[arg(long, value_name = "FILE")]
    pub(crate) hand_over: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DispatcherCommand {
    /// Writes the section `[dispatcher]` of `tympan.toml` for a vhost file of httpd; names every line without a
    /// counterpart.
    #[command(
        after_help = "Example: tympan dispatcher convert conf.d/dispatcher_vhost.conf > tympan.toml\n\n\
        Files with `Define` lines go first, and what `Include` names is read where it stands. The command fails (1) if \
        a rule could not be converted."
    )]
    Convert {
        /// The files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// A copy of httpd's own folder (`/etc/httpd`), in which included files are looked up; default the folders above
        /// the file that includes them.
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
    },
    /// Reads a configuration and prints every finding as `file:line:column: message`.
    #[command(
        after_help = "Example: tympan dispatcher check conf/dispatcher.any --root ./copy-of-the-server\n\n\
        A file without `/farms` is checked as a part of a configuration. The command fails (1) only on an error, not on a \
        warning."
    )]
    Check {
        /// The configuration, or a part of one.
        file: PathBuf,
        /// A folder that absolute include paths are looked up in, such as a copy of another machine's files.
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Tells what a changed configuration would decide otherwise: keys and rules that differ, and requests that are answered
    /// in another way.
    #[command(
        after_help = "Example: tympan dispatcher diff dispatcher.any new/dispatcher.any --urls access.log\n\n\
        Beside the URLs of the file it tries what a public farm should refuse, and a request for each pattern of both \
        configurations. The command fails (1) if a request is answered in another way."
    )]
    Diff {
        /// The configuration that serves now.
        old: PathBuf,
        /// The one that is to take its place.
        new: PathBuf,
        /// A file with a URL or a path on each line, or an access log.
        #[arg(long, value_name = "FILE")]
        urls: Option<PathBuf>,
        /// A file with the section `[dispatcher]` for the old one.
        #[arg(long, value_name = "FILE.toml")]
        old_settings: Option<PathBuf>,
        /// A file with the section `[dispatcher]` for the new one; default the old one's.
        #[arg(long, value_name = "FILE.toml")]
        new_settings: Option<PathBuf>,
        /// A folder that absolute include paths are looked up in.
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Writes what visitors get from the cache of a farm into an archive or a folder: the same bytes for the same pages,
    /// whenever they were fetched. A dispatcher may serve from the cache meanwhile.
    #[command(
        after_help = "Examples:\n  tympan dispatcher export dispatcher.any --tar site.tar\n  \
        tympan dispatcher export dispatcher.any --farm shop --folder ./shop --bare\n\n\
        What is out of date is left out, as is what `/filter`, `/rules`, `/auth_checker` or `/sessionmanagement` keep from \
        visitors."
    )]
    Export {
        /// The configuration.
        file: PathBuf,
        /// The farm; default the only one with a document root.
        #[arg(long, value_name = "NAME")]
        farm: Option<String>,
        /// The archive to write; `-` for standard output.
        #[arg(
            long,
            value_name = "FILE",
            required_unless_present = "folder",
            conflicts_with = "folder"
        )]
        tar: Option<PathBuf>,
        /// The folder to write, which is absent or empty.
        #[arg(long, value_name = "DIR")]
        folder: Option<PathBuf>,
        /// Writes files that are out of date, too.
        #[arg(long)]
        all: bool,
        /// Leaves out header files and ends of files (`.h` and `.ttl`), for other web servers.
        #[arg(long)]
        bare: bool,
        /// The time of all files, in seconds since 1970; before the year 2242, as archives tell no later one.
        #[arg(
            long,
            value_name = "SECONDS",
            default_value_t = 0,
            value_parser = clap::value_parser!(u64).range(..=0o777_7777_7777)
        )]
        time: u64,
        /// A folder that absolute include paths are looked up in.
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Tells what the dispatcher would do with a request, and by which rules.
    #[command(
        after_help = "Example: tympan dispatcher explain dispatcher.any http://www.example.org/content/a.html"
    )]
    Explain {
        /// The configuration.
        file: PathBuf,
        /// The URL; its host chooses the farm.
        url: String,
        /// A folder that absolute include paths are looked up in.
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
        /// A file with the section `[dispatcher]`, whose rules go first.
        #[arg(long, value_name = "FILE.toml")]
        settings: Option<PathBuf>,
        /// The method.
        #[arg(long, default_value = "GET")]
        method: String,
        /// A request header, `Name: value`; may be repeated.
        #[arg(long, value_name = "'N: V'")]
        header: Vec<String>,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tympan export --home ./publish --out /var/www/site\n  tympan export --home ./publish --out /var/www/site --mode changed\n\nThe web server serves /var/www/site/current. `[export]` in tympan.toml says what is exported and how."
)]
pub(crate) struct ExportArgs {
    /// The home; its instance may run. Then pages that search for words cannot be made.
    #[arg(long, value_name = "DIR")]
    pub(crate) home: PathBuf,
    /// The folder that gets the files; a new or empty one, or one of an earlier export.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Everything into a new tree that is then switched to, or what changed since the last export.
    #[arg(long, value_enum, default_value_t = ExportMode::Full)]
    pub(crate) mode: ExportMode,
    /// Goes on with a full export that was broken off.
    #[arg(long, conflicts_with_all = ["dry_run", "list"])]
    pub(crate) resume: bool,
    /// Draws everything, tells what would be written and what is wrong, and writes nothing.
    #[arg(long, conflicts_with = "list")]
    pub(crate) dry_run: bool,
    /// Lists pages, assets and files with the file of each, or why it gets none.
    #[arg(long)]
    pub(crate) list: bool,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How much is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportMode {
    /// Everything.
    Full,
    /// What changed.
    Changed,
}
