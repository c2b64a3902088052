//! Arguments that start the roles and export the site.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Args)]
#[command(after_help = "Example: tympan demo --home ./demo --dispatcher 127.0.0.1:8081")]
pub(crate) struct DemoArgs {
    /// The folder that stores all data.
    #[arg(long, value_name = "DIR", default_value = "./tympan-demo")]
    pub(crate) home: PathBuf,
    /// The listen address of the author.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4502")]
    pub(crate) author: SocketAddr,
    /// The listen address of publish.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4503")]
    pub(crate) publish: SocketAddr,
    /// The listen address of the dispatcher.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub(crate) dispatcher: SocketAddr,
    /// A site folder to use instead of the sample; its scripts are read live.
    #[arg(long, value_name = "DIR")]
    pub(crate) site: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan author --home /srv/author --listen 127.0.0.1:4502 --admin-listen 127.0.0.1:4512"
)]
pub(crate) struct InstanceArgs {
    /// The folder that stores all data; `tympan.toml` in it is read.
    #[arg(long, value_name = "DIR")]
    pub(crate) home: PathBuf,
    /// The listen address.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// The address of a second listener that serves health, metrics and login while the main one is saturated.
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin_listen: Option<SocketAddr>,
    /// The PostgreSQL database that stores the repository, instead of the home's packs.
    #[arg(long, value_name = "URL", env = "TYMPAN_DATABASE", hide_env_values = true)]
    pub(crate) database: Option<String>,
    /// The bucket for large blobs, instead of those of `[blobs]`: `s3://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`.
    #[arg(long, value_name = "URL")]
    pub(crate) blobs: Option<String>,
    /// Runs the heavy asset work of the queues that it shares with the other instances on its database; they leave that
    /// work alone as long as this instance is alive.
    #[arg(long, value_name = "ROLE")]
    pub(crate) role: Option<AssetWorkRole>,
}

/// The work that a process takes over from the other instances.
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
    /// The configuration to use.
    #[arg(long, value_name = "FILE.any")]
    pub(crate) config: Option<PathBuf>,
    /// A home that holds `dispatcher.any`.
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    pub(crate) home: Option<PathBuf>,
    /// A file with the section `[dispatcher]`; default `tympan.toml` in the home.
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) settings: Option<PathBuf>,
    /// The listen address; default `[listen] address` of the settings, else 127.0.0.1:8080.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// A socket through which a second dispatcher with the same arguments takes over from this one without a failed
    /// request; default `dispatcher.sock` in the home.
    #[arg(long, value_name = "FILE")]
    pub(crate) hand_over: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DispatcherCommand {
    /// Converts a vhost file of httpd to the section `[dispatcher]` of `tympan.toml`; names every line without a
    /// counterpart.
    #[command(
        after_help = "Example: tympan dispatcher convert conf.d/dispatcher_vhost.conf > tympan.toml\n\nName \
            files with `Define` lines first; files that `Include` names are read in place. The command fails \
            (1) if a rule could not be converted."
    )]
    Convert {
        /// The files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// A copy of httpd's own folder (`/etc/httpd`), in which included files are looked up; default the parent
        /// folders of the including file.
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
    },
    /// Checks a configuration and prints every finding as `file:line:column: message`.
    #[command(
        after_help = "Example: tympan dispatcher check conf/dispatcher.any --root ./copy-of-the-server\n\n\
        A file without `/farms` is checked as a part of a configuration. The command fails (1) only on an error, not on a \
        warning."
    )]
    Check {
        /// The configuration, or a part of one.
        file: PathBuf,
        /// The folder in which absolute include paths are looked up, such as a copy of another machine's files.
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Compares the decisions of two configurations: keys and rules that differ, and requests that are handled
    /// differently.
    #[command(
        after_help = "Example: tympan dispatcher diff dispatcher.any new/dispatcher.any --urls \
            access.log\n\nBesides the URLs of the file, it tries requests that a public farm should refuse, \
            and a request for each pattern of both configurations. The command fails (1) if the \
            configurations answer a request differently."
    )]
    Diff {
        /// The current configuration.
        old: PathBuf,
        /// The new configuration.
        new: PathBuf,
        /// A file with a URL or a path per line, or an access log.
        #[arg(long, value_name = "FILE")]
        urls: Option<PathBuf>,
        /// A file with the section `[dispatcher]` for the old configuration.
        #[arg(long, value_name = "FILE.toml")]
        old_settings: Option<PathBuf>,
        /// A file with the section `[dispatcher]` for the new configuration; default the old one's.
        #[arg(long, value_name = "FILE.toml")]
        new_settings: Option<PathBuf>,
        /// The folder in which absolute include paths are looked up.
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Exports the servable cache content of a farm to an archive or a folder: the same bytes for the same pages,
    /// regardless of when they were fetched. A dispatcher may serve from the cache during the export.
    #[command(
        after_help = "Examples:\n  tympan dispatcher export dispatcher.any --tar site.tar\n  tympan \
            dispatcher export dispatcher.any --farm shop --folder ./shop --bare\n\nStale files are left out, \
            as are files that `/filter`, `/rules`, `/auth_checker` or `/sessionmanagement` keep from \
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
        /// The folder to write, which must not exist or must be empty.
        #[arg(long, value_name = "DIR")]
        folder: Option<PathBuf>,
        /// Also exports files that are out of date.
        #[arg(long)]
        all: bool,
        /// Leaves out header files and expiry files (`.h` and `.ttl`), for other web servers.
        #[arg(long)]
        bare: bool,
        /// The modification time of all files, in seconds since 1970; before the year 2242, the limit of archives.
        #[arg(
            long,
            value_name = "SECONDS",
            default_value_t = 0,
            value_parser = clap::value_parser!(u64).range(..=0o777_7777_7777)
        )]
        time: u64,
        /// The folder in which absolute include paths are looked up.
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Shows what the dispatcher would do with a request, and by which rules.
    #[command(
        after_help = "Example: tympan dispatcher explain dispatcher.any http://www.example.org/content/a.html"
    )]
    Explain {
        /// The configuration.
        file: PathBuf,
        /// The URL; its host selects the farm.
        url: String,
        /// The folder in which absolute include paths are looked up.
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
        /// A file with the section `[dispatcher]`, whose rules apply first.
        #[arg(long, value_name = "FILE.toml")]
        settings: Option<PathBuf>,
        /// The method.
        #[arg(long, default_value = "GET")]
        method: String,
        /// A request header, `Name: value`; may be repeated.
        #[arg(short = 'H', long, value_name = "'NAME: VALUE'")]
        header: Vec<String>,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tympan export --home ./publish --out /var/www/site\n  tympan export --home \
        ./publish --out /var/www/site --mode changed\n\nThe web server serves /var/www/site/current. \
        `[export]` in tympan.toml configures what is exported and how."
)]
pub(crate) struct ExportArgs {
    /// The home; its instance may be running, but then pages with a full-text search cannot be exported.
    #[arg(long, value_name = "DIR")]
    pub(crate) home: PathBuf,
    /// The target folder, which must be new, empty, or of an earlier export.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Exports everything into a new tree that then replaces the old one, or only changes since the last export.
    #[arg(long, value_enum, default_value_t = ExportMode::Full)]
    pub(crate) mode: ExportMode,
    /// Continues an interrupted full export.
    #[arg(long, conflicts_with_all = ["dry_run", "list"])]
    pub(crate) resume: bool,
    /// Renders everything, prints what would be written and any problems, and writes nothing.
    #[arg(long, conflicts_with = "list")]
    pub(crate) dry_run: bool,
    /// Lists pages, assets and files with the exported file of each, or the reason why there is none.
    #[arg(long)]
    pub(crate) list: bool,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The scope of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportMode {
    /// Everything.
    Full,
    /// Only changes.
    Changed,
}
