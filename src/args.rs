//! The command line, as DESIGN fixes it: scripts rely on these names.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Runs a content website end to end: author, publish, dispatcher.
#[derive(Debug, Parser)]
#[command(name = "tympan", version, max_term_width = 100, after_help = "Example: tympan demo")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The command that reads PDF for another process of this program.
pub(crate) const READ_PDF: &str = "read-pdf";
/// The command that draws pictures for another process of this program.
pub(crate) const DRAW_PICTURES: &str = "draw-pictures";
/// The command that runs another program with bounds.
pub(crate) const RUN_TOOL: &str = "run-tool";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs author, publish and dispatcher in one process, with a sample site.
    Demo(Demo),
    /// Runs an author instance.
    Author(Instance),
    /// Runs a publish instance.
    Publish(Instance),
    /// Runs, checks or explains a dispatcher.
    #[command(args_conflicts_with_subcommands = true)]
    Dispatcher(Dispatcher),
    /// Begins and checks the folder of a site.
    #[command(subcommand)]
    Site(Site),
    /// Installs and builds content packages.
    #[command(subcommand)]
    Package(Package),
    /// Looks after indexes and tells how queries are run.
    #[command(subcommand)]
    Index(Index),
    /// Writes the pages of a site as files that any web server serves.
    Export(Export),
    /// Looks after a repository.
    Repo(RepoArguments),
    /// Saves folders and repositories in a vault, and restores them.
    Backup(crate::backup_args::BackupArguments),
    /// Looks after users and their tokens.
    #[command(subcommand)]
    User(User),
    /// Looks after the queues of a running instance.
    #[command(subcommand)]
    Jobs(Jobs),
    /// Looks after mounts, imports and duplicates of assets of a running author.
    #[command(subcommand)]
    Assets(Assets),
    /// Puts a site under load and judges what comes back: URLs, plans of JMeter, logs, reports.
    #[command(subcommand)]
    Lab(crate::lab_args::Lab),
    /// Tells the health of a running instance, with reasons.
    #[command(after_help = "Example: tympan status --url http://127.0.0.1:4502")]
    Status(Remote),
    /// Reads a PDF from standard input and writes its text; the full-text index starts it.
    #[command(name = READ_PDF, hide = true)]
    ReadPdf,
    /// Draws the pictures that arrive on standard input, a socket; asset processing starts it.
    #[command(name = DRAW_PICTURES, hide = true)]
    DrawPictures,
    /// Runs a program with bounds on memory and time; asset processing starts it.
    #[command(name = RUN_TOOL, hide = true)]
    RunTool(RunTool),
    /// Draws the standard renditions of a file; measurements use it.
    #[command(name = "draw-file", hide = true)]
    DrawFile(DrawFile),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Site {
    /// Writes a small site that runs, to begin with.
    #[command(after_help = "Example: tympan site new ./shop && tympan demo --site ./shop")]
    New {
        /// The folder; it must not exist, or be empty. Its name becomes the site's.
        dir: PathBuf,
    },
    /// Reads templates, components and content, and tells what is wrong, as `file:line:column: message`.
    #[command(after_help = "Example: tympan site check ./shop")]
    Check {
        /// The folder, with its `site.toml`.
        dir: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct RunTool {
    /// Bytes of memory.
    pub(crate) memory: u64,
    /// Seconds of processor time.
    pub(crate) seconds: u64,
    /// How much it stands behind others.
    pub(crate) niceness: i32,
    /// The program.
    pub(crate) program: String,
    /// Its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DrawFile {
    /// The file.
    pub(crate) file: PathBuf,
    /// The folder that gets `web.jpg`, `319.png`, `140.png` and `48.png`.
    pub(crate) folder: PathBuf,
    /// The quality of the JPEG.
    #[arg(long, default_value_t = 90)]
    pub(crate) quality: u8,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: tympan demo --home ./demo --dispatcher 127.0.0.1:8081")]
pub(crate) struct Demo {
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
pub(crate) struct Instance {
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
    /// Takes the heavy work on assets from the queues that it shares with the other instances on its database, which
    /// leave it alone as long as this one lives.
    #[arg(long, value_name = "ROLE")]
    pub(crate) role: Option<HeavyRole>,
}

/// What a process may take off the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HeavyRole {
    /// Ingest, renditions and workflows of assets.
    Assets,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan dispatcher --config dispatcher.any --listen 127.0.0.1:8080"
)]
pub(crate) struct Dispatcher {
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
        after_help = "Example: tympan dispatcher convert global.vars site.vhost > tympan.toml\n\n\
        Files with `Define` lines go first. The command fails (1) if a rule could not be converted."
    )]
    Convert {
        /// The files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
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

#[derive(Debug, Subcommand)]
pub(crate) enum Package {
    /// Installs a content package in one commit, with those that it needs and those within it.
    #[command(after_help = "Example: tympan package install wknd.zip --home /srv/author")]
    Install {
        /// The package; or the id `group:name:version` of one that is stored.
        #[arg(value_name = "FILE.zip|ID")]
        package: String,
        /// What to do about packages that it needs: best_effort installs those that are stored and warns of others,
        /// required refuses it if one is missing, strict if one is not installed already, ignore does nothing.
        #[arg(long, value_name = "RULE", default_value = "best_effort")]
        dependencies: String,
        /// What to do when a node elsewhere has the identifier of a node in the package: refuse, new or replace.
        #[arg(long, value_name = "RULE", default_value = "refuse")]
        identifiers: String,
        #[command(flatten)]
        place: Place,
    },
    /// Tells what installing a package would change, node by node; changes nothing.
    #[command(after_help = "Example: tympan package diff wknd.zip --home /srv/author")]
    Diff {
        /// The package.
        #[arg(value_name = "FILE.zip")]
        file: PathBuf,
        #[command(flatten)]
        place: Place,
    },
    /// Takes back what the installation of a package did, but for what something else changed since.
    #[command(
        after_help = "Example: tympan package uninstall my:site:1.0 --url http://127.0.0.1:4502"
    )]
    Uninstall {
        /// The package: `group:name:version`; without a version the newest one.
        id: String,
        /// Uninstalls it although an installed package needs it.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Lists the packages that are stored, and which are installed.
    #[command(after_help = "Example: tympan package list --home /srv/author")]
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Builds a package of the content that a filter names.
    #[command(
        after_help = "Example: tympan package build -f filter.xml -o site.zip --home /srv/author"
    )]
    Build {
        /// The filter, as in `META-INF/vault/filter.xml`.
        #[arg(short = 'f', long, value_name = "FILTER")]
        filter: PathBuf,
        /// The package to write.
        #[arg(short = 'o', long, value_name = "FILE.zip")]
        output: PathBuf,
        /// The package's id; without it, it is named as the file.
        #[arg(long, value_name = "GROUP:NAME:VERSION")]
        id: Option<String>,
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Index {
    /// Lists the property indexes and what they can do now.
    #[command(
        after_help = "Example: tympan index status --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Status {
        #[command(flatten)]
        place: Place,
    },
    /// Builds an index anew, or all of them; queries do without it until it is built.
    #[command(after_help = "Example: tympan index rebuild cqTags --home /srv/author")]
    Rebuild {
        /// The name of its definition.
        name: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Tells which index a query uses, what it reads of it, and why.
    #[command(
        after_help = "Example: tympan index explain \"SELECT * FROM [cq:Page] WHERE ISDESCENDANTNODE('/content')\" --home /srv/author"
    )]
    Explain {
        /// The statement; of `querybuilder`, predicates written as `path=/content&type=cq:Page`.
        query: String,
        /// Its language: sql2, xpath or querybuilder.
        #[arg(long, value_name = "NAME", default_value = "sql2", value_parser = ["sql2", "xpath", "querybuilder"])]
        language: String,
        /// Runs it, too, and tells what that took.
        #[arg(long)]
        analyze: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Lists the statements that were slow or that no index served, with their plan and who asked.
    #[command(
        after_help = "Example: tympan index slow --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Slow {
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tympan export --home ./publish --out /var/www/site\n  tympan export --home ./publish --out /var/www/site --mode changed\n\nThe web server serves /var/www/site/current. `[export]` in tympan.toml says what is exported and how."
)]
pub(crate) struct Export {
    /// The home; its instance must not run.
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

/// A home, or a running instance.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The home; its instance must not run.
    #[arg(long, value_name = "DIR", required_unless_present = "url", conflicts_with = "url")]
    pub(crate) home: Option<PathBuf>,
    /// The running instance.
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// A token of `tympan user token`.
    #[arg(long, value_name = "T", requires = "url")]
    pub(crate) token: Option<String>,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RepoArguments {
    /// The PostgreSQL database that the repository lies in, in place of the home's packs.
    #[arg(
        long,
        value_name = "URL",
        global = true,
        env = "TYMPAN_DATABASE",
        hide_env_values = true
    )]
    pub(crate) database: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Repo,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Repo {
    /// Re-hashes everything, walks every ref, and says what is damaged, which paths that affects and what a repair
    /// would do.
    #[command(after_help = "Example: tympan repo check --home /srv/author --repair")]
    Check {
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Repairs what is damaged: the newest good state, completed with what can still be read. Nothing is deleted;
        /// everything that is restored or lost is printed.
        #[arg(long)]
        repair: bool,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Makes a staging home in constant time, a full copy, or a standby.
    Clone(Clone),
    /// Lets a standby take over: it becomes a home of its own.
    #[command(after_help = "Example: tympan repo promote --home /mnt/standby")]
    Promote {
        /// The standby; nothing may follow into it any more.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Collects garbage: what no branch, kept revision, lease or pin reaches.
    #[command(after_help = "Example: tympan repo gc --dry-run --home /srv/author")]
    Gc {
        /// The home; its instance must not run. A running one collects by itself.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Says what would go and what keeps the rest; removes nothing.
        #[arg(long)]
        dry_run: bool,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lists the revisions of a branch, newest first.
    #[command(after_help = "Example: tympan repo log --limit 10 --home /srv/author")]
    Log {
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// The branch.
        #[arg(long, default_value = "main")]
        branch: String,
        /// How many.
        #[arg(long, default_value_t = 50)]
        limit: usize,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lists the documents that differ between two states, each a root or the name of a branch.
    #[command(after_help = "Example: tympan repo diff main launch --home /srv/author")]
    Diff {
        /// The earlier state.
        from: String,
        /// The later state.
        to: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Takes a branch back to an earlier state, as a new revision.
    #[command(after_help = "Example: tympan repo revert 4f5c… --home /srv/author")]
    Revert {
        /// The root of the state, as `log` lists it.
        root: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// The branch.
        #[arg(long, default_value = "main")]
        branch: String,
    },
    /// Brings a node back as it was, with everything below it, as a new revision.
    RestorePath(RestorePath),
    /// Looks after branches.
    #[command(subcommand)]
    Branch(Branch),
    /// Counts what is stored.
    #[command(after_help = "Example: tympan repo stats --home /srv/author")]
    Stats {
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "Examples: tympan repo clone --from /srv/author --to /srv/staging
          tympan repo clone --from http://127.0.0.1:4502 --key author/replication.key --to /mnt/standby --follow")]
pub(crate) struct Clone {
    /// The home to clone, whose instance may run; or the URL of a running instance.
    #[arg(long, value_name = "URL|DIR")]
    pub(crate) from: String,
    /// The home to make; it must not exist, or be empty, or be a standby of the same origin.
    #[arg(long, value_name = "DIR")]
    pub(crate) to: PathBuf,
    /// Copies everything, in place of reading from the origin what was not changed here.
    #[arg(long, conflicts_with = "follow")]
    pub(crate) full: bool,
    /// Copies everything and goes on copying what is committed, until it is stopped.
    #[arg(long)]
    pub(crate) follow: bool,
    /// For a URL: a file with its replication key.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// For a URL: a token of its `tympan user token admin`.
    #[arg(long, value_name = "T", conflicts_with = "key")]
    pub(crate) token: Option<String>,
    /// For an `https` URL: a PEM file with the certificate that must have signed that of the instance.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples: tympan repo restore-path /content/site/news --at 2026-03-01T09:00 --home /srv/author
          tympan repo restore-path /content/site/news --version 1.4 --to /content/site/old-news --home /srv/author"
)]
pub(crate) struct RestorePath {
    /// The node; it need not exist any more.
    pub(crate) path: String,
    /// The time at which it was right: ISO 8601, UTC without an offset.
    #[arg(long, value_name = "TIME", required_unless_present_any = ["revision", "version"])]
    pub(crate) at: Option<String>,
    /// The number of the revision in which it was right, as `log --json` lists it.
    #[arg(long, value_name = "N", conflicts_with = "at")]
    pub(crate) revision: Option<u64>,
    /// A version of the node, by name or label; what has records of its own below it stays.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["at", "revision"])]
    pub(crate) version: Option<String>,
    /// Where to put it; default where it was.
    #[arg(long, value_name = "PATH")]
    pub(crate) to: Option<String>,
    /// The branch that gets it.
    #[arg(long, default_value = "main")]
    pub(crate) branch: String,
    /// The branch in whose history it was right; default the one that gets it.
    #[arg(long, value_name = "BRANCH")]
    pub(crate) from: Option<String>,
    /// The home; its instance must not run.
    #[arg(long, value_name = "DIR")]
    pub(crate) home: PathBuf,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Whose side counts where both changed the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Prefer {
    /// What is being merged.
    Mine,
    /// The branch that it is merged into.
    Theirs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples: tympan repo branch merge launch --dry-run --home /srv/author
          tympan repo branch merge launch --only /content/site/news --theirs /content/site/news/one --home /srv/author")]
pub(crate) struct MergeBranch {
    /// Its name.
    pub(crate) name: String,
    /// The branch that it is merged into.
    #[arg(long, default_value = "main")]
    pub(crate) into: String,
    /// Merges this node and everything below it, not the rest; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) only: Vec<String>,
    /// Whose side counts where both changed the same; without it, conflicts are listed and nothing is merged.
    #[arg(long, value_name = "SIDE")]
    pub(crate) prefer: Option<Prefer>,
    /// In conflicts at this node and below it, the merged branch counts; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) mine: Vec<String>,
    /// In conflicts at this node and below it, the branch merged into counts; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) theirs: Vec<String>,
    /// Says what would change; merges nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The home; its instance must not run.
    #[arg(long, value_name = "DIR")]
    pub(crate) home: PathBuf,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Branch {
    /// Lists all branches with their roots.
    #[command(after_help = "Example: tympan repo branch list --home /srv/author")]
    List {
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Makes a branch, which copies nothing.
    #[command(after_help = "Examples: tympan repo branch create launch --home /srv/author
          tympan repo branch create look-back --at 2026-03-01T09:00 --home /srv/author")]
    Create {
        /// Its name.
        name: String,
        /// The branch that it begins as.
        #[arg(long, default_value = "main")]
        from: String,
        /// Begins as that branch was at this time: ISO 8601, UTC without an offset.
        #[arg(long, value_name = "TIME")]
        at: Option<String>,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Renames a branch.
    #[command(after_help = "Example: tympan repo branch rename launch spring --home /srv/author")]
    Rename {
        /// Its name.
        from: String,
        /// Its new name.
        to: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Removes a branch; its states stay for as long as history is kept.
    #[command(after_help = "Example: tympan repo branch delete launch --home /srv/author")]
    Delete {
        /// Its name.
        name: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Lists what a branch has changed since it was made or last merged.
    #[command(after_help = "Example: tympan repo branch diff launch --details --home /srv/author")]
    Diff {
        /// Its name.
        name: String,
        /// Lists every node and property that differs inside the documents.
        #[arg(long)]
        details: bool,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON, one document a line.
        #[arg(long)]
        json: bool,
    },
    /// Merges what a branch has changed since it was made or last merged, or a part of that.
    Merge(MergeBranch),
}

#[derive(Debug, Subcommand)]
pub(crate) enum User {
    /// Adds a user; the password comes from standard input.
    #[command(
        after_help = "Example: echo \"$PASSWORD\" | tympan user add ann --group content-authors --home /srv/author"
    )]
    Add {
        /// The user's name.
        name: String,
        /// A group that the user shall be in; may be repeated.
        #[arg(long, value_name = "GROUP")]
        group: Vec<String>,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Changes a password; it comes from standard input.
    #[command(
        after_help = "Example: echo \"$PASSWORD\" | tympan user passwd ann --home /srv/author"
    )]
    Passwd {
        /// The user's name.
        name: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Keeps a user from logging in and ends its sessions and tokens.
    #[command(
        after_help = "Example: tympan user disable ann --reason 'left in May' --home /srv/author"
    )]
    Disable {
        /// The user's name.
        name: String,
        /// Why.
        #[arg(long, default_value = "disabled")]
        reason: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Lets a disabled user log in again.
    #[command(after_help = "Example: tympan user enable ann --home /srv/author")]
    Enable {
        /// The user's name.
        name: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Removes a user and ends its sessions and tokens.
    #[command(after_help = "Example: tympan user delete ann --home /srv/author")]
    Delete {
        /// The user's name.
        name: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Makes a token for a program and prints it.
    #[command(after_help = "Example: tympan user token admin --expires 90d --home /srv/author")]
    Token {
        /// The user's name.
        name: String,
        /// For how long it works, such as `12h` or `90d`; without this, until it is revoked.
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
        /// The home; its instance may run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Lists the tokens and sessions that work, of one user or of all.
    #[command(after_help = "Example: tympan user tokens admin --home /srv/author")]
    Tokens {
        /// The user's name.
        name: Option<String>,
        /// The home; its instance may run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Takes back a token or ends a session.
    #[command(after_help = "Example: tympan user revoke 4f5c0a1b2c3d --home /srv/author")]
    Revoke {
        /// What `tympan user tokens` calls it.
        id: String,
        /// The home; its instance may run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Lists the users.
    #[command(after_help = "Example: tympan user list --home /srv/author")]
    List {
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Makes, changes and lists groups.
    #[command(subcommand)]
    Group(Group),
    /// Tells what a user may do at a path, and which entry of which policy says so.
    #[command(
        after_help = "Example: tympan user why ann /content/site/en --privilege jcr:write --home /srv/author"
    )]
    Why {
        /// The user's name; `anonymous` for someone without a login.
        name: String,
        /// The path of a node, whether it is there or not.
        path: String,
        /// The privilege to ask about; may be repeated. Without this, what reading, writing and activating need.
        #[arg(long, value_name = "NAME")]
        privilege: Vec<String>,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Group {
    /// Makes a group.
    #[command(after_help = "Example: tympan user group create translators --home /srv/author")]
    Create {
        /// The group's name.
        group: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Removes a group; its members stay.
    #[command(after_help = "Example: tympan user group delete translators --home /srv/author")]
    Delete {
        /// The group's name.
        group: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Puts a user or group into a group.
    #[command(after_help = "Example: tympan user group add content-authors ann --home /srv/author")]
    Add {
        /// The group's name.
        group: String,
        /// The user or group.
        member: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Takes a user or group out of a group.
    #[command(
        after_help = "Example: tympan user group remove content-authors ann --home /srv/author"
    )]
    Remove {
        /// The group's name.
        group: String,
        /// The user or group.
        member: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Lists the groups.
    #[command(after_help = "Example: tympan user group list --home /srv/author")]
    List {
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

/// What `tympan assets` does.
#[derive(Debug, Subcommand)]
pub(crate) enum Assets {
    /// Places with files that are kept as assets.
    Mount {
        #[command(subcommand)]
        mount: Mount,
    },
    /// Makes assets of the files of a place; asked for again, goes on where it was.
    #[command(
        after_help = "Example: tympan assets import /srv/press/2024 /content/dam/press --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Import {
        /// Where the files are, in a place that the server's `tympan.toml` lists: `/folder`, `davs://…`, `s3://…`,
        /// `cmis+https://…`.
        source: String,
        /// The folder that gets them, below `/content/dam`.
        target: String,
        /// Writes nothing, and says what would be.
        #[arg(long)]
        dry_run: bool,
        /// Does not wait for the end.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Lists assets whose files have the same bytes.
    #[command(
        after_help = "Example: tympan assets duplicates /content/dam/press --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Duplicates {
        /// The folder to look in.
        #[arg(default_value = "/content/dam")]
        path: String,
        /// How many groups at most.
        #[arg(long, default_value_t = 1000)]
        limit: u32,
        #[command(flatten)]
        remote: Remote,
    },
    /// Lists where an asset is used.
    #[command(
        after_help = "Example: tympan assets references /content/dam/press/a.jpg --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    References {
        /// The asset.
        path: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Switches on or off that edited metadata is written into the files.
    #[command(
        after_help = "Example: tympan assets write-back on --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    WriteBack {
        /// Whether it is on.
        switch: Switch,
        #[command(flatten)]
        remote: Remote,
    },
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// What `tympan assets mount` does.
#[derive(Debug, Subcommand)]
pub(crate) enum Mount {
    /// Lists the mounts with what their last passes did.
    #[command(
        after_help = "Example: tympan assets mount list --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    List(Remote),
    /// Shows a mount, with the files that its last pass left out.
    #[command(
        after_help = "Example: tympan assets mount status press --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Status {
        /// The mount.
        name: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Begins a pass now, also of a mount that is paused.
    #[command(
        after_help = "Example: tympan assets mount run press --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Run {
        /// The mount.
        name: String,
        /// Believes that files are gone, however many.
        #[arg(long)]
        accept_removals: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Ends the present pass after its batch, and begins no other.
    #[command(
        after_help = "Example: tympan assets mount pause press --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Pause {
        /// The mount.
        name: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Lets passes begin again, the first at once.
    #[command(
        after_help = "Example: tympan assets mount resume press --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Resume {
        /// The mount.
        name: String,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Jobs {
    /// Lists the topics that were seen, each with its queue and what became of its jobs.
    #[command(
        after_help = "Example: tympan jobs topics --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Topics(Remote),
    /// Lists the queues with how they are configured and how they do.
    #[command(
        after_help = "Example: tympan jobs queues --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Queues(Remote),
    /// Lists the models of workflows; exits with 1 if one names what is not known here, and so starts nothing.
    #[command(
        after_help = "Example: tympan jobs models --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Models(Remote),
    /// Lists jobs, oldest first.
    #[command(
        after_help = "Example: tympan jobs list --state given_up --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    List {
        /// Those of this queue.
        #[arg(long, value_name = "NAME")]
        queue: Option<String>,
        /// Those of this topic.
        #[arg(long, value_name = "TOPIC", conflicts_with = "queue")]
        topic: Option<String>,
        /// Those in this state, such as queued, active, given_up, error.
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        /// How many at most.
        #[arg(long, default_value_t = 100)]
        limit: u32,
        #[command(flatten)]
        remote: Remote,
    },
    /// Makes a queue for topics; the queue that took them so far no longer does.
    #[command(
        after_help = "Example: tympan jobs add-queue 'DAM Update Asset' com/adobe/granite/workflow/job/etc/workflow/models/dam/update_asset/jcr_content/model --set queue.maxparallel=0.5 --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    AddQueue {
        /// The queue's name.
        name: String,
        /// The topics that it takes: `a/b` is exact, `a/b/*` all below, `a/b/.` those directly below.
        #[arg(required = true)]
        topics: Vec<String>,
        /// A property, such as `queue.maxparallel=0.5`; may be repeated.
        #[arg(long, value_name = "NAME=VALUE")]
        set: Vec<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Changes properties of a queue; it works by them at once.
    #[command(
        after_help = "Example: tympan jobs set 'Granite Workflow Queue' queue.maxparallel=2 --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Set {
        /// The queue's name or PID.
        queue: String,
        /// Properties, such as `queue.maxparallel=2` or `queue.retries=3`.
        #[arg(required = true, value_name = "NAME=VALUE")]
        properties: Vec<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Keeps jobs of a queue from being begun; those that run go on.
    #[command(
        after_help = "Example: tympan jobs pause 'Granite Workflow Queue' --wait --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Pause {
        /// The queue's name.
        queue: String,
        /// Waits until none of its jobs runs.
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Lets jobs of a queue be begun again.
    #[command(
        after_help = "Example: tympan jobs resume 'Granite Workflow Queue' --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Resume {
        /// The queue's name.
        queue: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Shows what runs by itself, and when next.
    #[command(
        after_help = "Example: tympan jobs schedules --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Schedules(Remote),
    /// Runs now what is scheduled, such as a task of maintenance.
    #[command(
        after_help = "Example: tympan jobs run maintenance/garbage --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Run {
        /// The schedule's name.
        schedule: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Lets a job run again now, or all of a queue that were given up.
    #[command(
        after_help = "Example: tympan jobs retry 17 --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Retry {
        /// The job's number.
        #[arg(required_unless_present = "queue")]
        id: Option<i64>,
        /// All jobs of this queue that were given up.
        #[arg(long, value_name = "NAME", conflicts_with = "id")]
        queue: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Remote {
    /// The instance.
    #[arg(long, value_name = "URL")]
    pub(crate) url: String,
    /// A token of `tympan user token`.
    #[arg(long, value_name = "T")]
    pub(crate) token: Option<String>,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
