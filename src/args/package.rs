//! Arguments of `tympan package` and `tympan index`: packages and indexes.

use std::path::PathBuf;

use clap::Subcommand;

use super::instance_location::HomeOrInstanceArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum PackageCommand {
    /// Installs a content package in one commit, with its dependencies and its subpackages.
    #[command(after_help = "Example: tympan package install wknd.zip --home /srv/author")]
    Install {
        /// The package file; or the id `group:name:version` of a stored package.
        #[arg(value_name = "FILE.zip|ID")]
        package: String,
        /// The handling of dependencies: best_effort installs those that are stored and warns of others, required
        /// refuses the package if one is missing, strict if one is not installed already, ignore does nothing.
        #[arg(long, value_name = "RULE", default_value = "best_effort")]
        dependencies: String,
        /// The action if a node elsewhere has the identifier of a node in the package: refuse, new or replace.
        #[arg(long, value_name = "RULE", default_value = "refuse")]
        identifiers: String,
        #[command(flatten)]
        place: HomeOrInstanceArgs,
    },
    /// Shows what installing a package would change, node by node; changes nothing.
    #[command(after_help = "Example: tympan package diff wknd.zip --home /srv/author")]
    Diff {
        /// The package.
        #[arg(value_name = "FILE.zip")]
        file: PathBuf,
        #[command(flatten)]
        place: HomeOrInstanceArgs,
    },
    /// Reverts the installation of a package, except for content that was changed since.
    #[command(
        after_help = "Example: tympan package uninstall my:site:1.0 --url http://127.0.0.1:4502"
    )]
    Uninstall {
        /// The package: `group:name:version`; without a version, the newest one.
        id: String,
        /// Uninstalls it even if an installed package depends on it.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        place: HomeOrInstanceArgs,
    },
    /// Lists the stored packages, and which of them are installed.
    #[command(after_help = "Example: tympan package list --home /srv/author")]
    List {
        #[command(flatten)]
        place: HomeOrInstanceArgs,
    },
    /// Builds a package of the content that a filter selects.
    #[command(
        after_help = "Example: tympan package build -f filter.xml -o site.zip --home /srv/author"
    )]
    Build {
        /// The filter, as in `META-INF/vault/filter.xml`.
        #[arg(short = 'f', long, value_name = "FILTER")]
        filter: PathBuf,
        /// The package to write.
        #[arg(short = 'o', long = "out", alias = "output", value_name = "FILE.zip")]
        output: PathBuf,
        /// The package's id; by default derived from the file name.
        #[arg(long, value_name = "GROUP:NAME:VERSION")]
        id: Option<String>,
        #[command(flatten)]
        place: HomeOrInstanceArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum IndexCommand {
    /// Lists the property indexes and their state.
    #[command(
        after_help = "Example: tympan index status --url http://127.0.0.1:4502 --token-file token"
    )]
    Status {
        #[command(flatten)]
        place: HomeOrInstanceArgs,
    },
    /// Rebuilds one index, or all of them; queries do not use an index until it is built.
    #[command(after_help = "Example: tympan index rebuild cqTags --home /srv/author")]
    Rebuild {
        /// The name of the index definition.
        name: Option<String>,
        #[command(flatten)]
        place: HomeOrInstanceArgs,
    },
    /// Shows which index a query uses, what it reads from it, and why.
    #[command(
        after_help = "Example: tympan index explain \"SELECT * FROM [cq:Page] WHERE ISDESCENDANTNODE('/content')\" --home /srv/author"
    )]
    Explain {
        /// The statement; for `querybuilder`, predicates written as `path=/content&type=cq:Page`.
        query: String,
        /// The query language: sql2, xpath or querybuilder.
        #[arg(long, value_name = "NAME", default_value = "sql2", value_parser = ["sql2", "xpath", "querybuilder"])]
        language: String,
        /// Also runs the query, and prints the cost.
        #[arg(long)]
        analyze: bool,
        #[command(flatten)]
        place: HomeOrInstanceArgs,
    },
    /// Lists the statements that were slow or that no index served, with their plan and the user.
    #[command(
        after_help = "Example: tympan index slow --url http://127.0.0.1:4502 --token-file token"
    )]
    Slow {
        #[command(flatten)]
        place: HomeOrInstanceArgs,
    },
}
