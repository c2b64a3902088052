//! Sites: a folder with components and content is imported as content of an instance.
//!
//! The sample site is embedded as a content package that the build creates from the folder `site`.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;
use std::time::SystemTime;

use serde::Deserialize;
use tympan_content::{
    NodePath, Property, Repository, Session, Subtree, SubtreeScope, Value, ValueType,
};
use tympan_content_package::{ContentPackage, PackageLimits};
use tympan_replicate::{ReplicationAction, ReplicationRequest, mark_replicated};
use tympan_terminal::{CommandFault, error_chain_text};

use crate::config::{PublishSection, parse_toml};

#[path = "site_archive.rs"]
pub(crate) mod archive;
mod bench;

/// The sample site as a content package.
const SAMPLE_PACKAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/site.zip"));
const SAMPLE_DESCRIPTION: &str = include_str!("../site/site.toml");
/// The description of the benchmark pages.
const BENCH_SPEC: &str = include_str!("../site/bench/bench.json");

/// The URLs at which the instances of a site reach each other.
pub(crate) struct SiteNeighbors {
    /// The publisher's URL, for the author's agent.
    pub(crate) publish_url: String,
    /// The dispatcher's URL, for the publisher's agent.
    pub(crate) dispatcher_url: String,
}

/// The contents of `site.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SiteDescription {
    /// A short name.
    #[expect(dead_code, reason = "read to be checked")]
    name: String,
    /// The title of the site.
    #[expect(dead_code, reason = "read to be checked")]
    title: String,
    /// The path of the home page.
    home: Option<String>,
    /// The languages of its content.
    #[serde(default)]
    #[expect(dead_code, reason = "read to be checked")]
    languages: Vec<String>,
    /// The headers of its pages, which are written into the `tympan.toml` of a new publisher for it.
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

/// Reads the path of a site's home page from its `site.toml`, or the sample's.
///
/// # Errors
/// With `file:line:column` if it is malformed.
pub(crate) fn home_page_path(site: Option<&Path>) -> Result<Option<String>, CommandFault> {
    Ok(read_description(site)?.home)
}

/// Returns the text of a new `tympan.toml` for a publisher of the site; `None` for a site that names no headers.
///
/// # Errors
/// With `file:line:column` if its `site.toml` is malformed, and for headers that cannot be sent.
pub(crate) fn publisher_config(site: Option<&Path>) -> Result<Option<String>, CommandFault> {
    let headers = read_description(site)?.headers;
    if headers.is_empty() {
        return Ok(None);
    }
    let publish = PublishSection { headers };
    publish.page_headers().map_err(CommandFault::usage)?;
    // A JSON string is also a TOML string.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let lines = publish.headers.iter();
    let table: String =
        lines.map(|(name, value)| format!("{} = {}\n", quoted(name), quoted(value))).collect();
    Ok(Some(format!(
        "# What browsers may do with the pages of this publisher. It is written once and then yours to edit.\n\
         [publish.headers]\n{table}"
    )))
}

/// Reads a `site.toml`, or the sample's.
fn read_description(site: Option<&Path>) -> Result<SiteDescription, CommandFault> {
    let (text, file) = match site {
        Some(dir) => {
            let file = dir.join("site.toml");
            let text = std::fs::read_to_string(&file).map_err(|error| {
                CommandFault::usage(format!("cannot read `{}`: {error}", file.display()))
            })?;
            (text, file.display().to_string())
        }
        None => (SAMPLE_DESCRIPTION.to_owned(), "site.toml".to_owned()),
    };
    parse_toml::<SiteDescription>(&file, &text).map_err(CommandFault::usage)
}

/// Reads a site folder, or the sample, as a package.
///
/// # Errors
/// With `file:line: message` if the site is malformed.
pub(crate) fn read_site_package(
    site: Option<&Path>,
) -> Result<ContentPackage<Cursor<Vec<u8>>>, CommandFault> {
    let (bytes, name) = match site {
        Some(dir) => {
            let read = archive::build_site_package(dir);
            let bytes = read.map_err(|error| {
                CommandFault::cannot_run(format!(
                    "cannot read the site `{}`: {error}",
                    dir.display()
                ))
            })?;
            (bytes, dir.display().to_string())
        }
        None => (SAMPLE_PACKAGE.to_vec(), "site".to_owned()),
    };
    ContentPackage::read(Cursor::new(bytes), &name, &PackageLimits::default())
        .map_err(|error| CommandFault::usage(error_chain_text(&error)))
}

/// Imports a site into an empty repository, with agents and the replication status of a published site, in one commit
/// and a separate one for that status. `progress` is called with the number of nodes done and to do.
///
/// # Errors
/// If the site is malformed or content refuses it.
pub(crate) fn import_site(
    repository: &Repository,
    package: &mut ContentPackage<Cursor<Vec<u8>>>,
    neighbors: &SiteNeighbors,
    home: Option<&str>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(), CommandFault> {
    let failed = |error: tympan_content::Error| {
        CommandFault::cannot_run(format!("cannot import the site: {}", error_chain_text(&error)))
    };
    let mut session = repository.session("system").map_err(failed)?;
    package
        .install(&mut session, &mut |step| progress(step.done_nodes, step.total_nodes))
        .map_err(|error| CommandFault::usage(error_chain_text(&error)))?;
    bench::import_bench_pages(&mut session, BENCH_SPEC)?;
    put_agents(&mut session, neighbors).map_err(failed)?;
    put_indexes(&mut session).map_err(failed)?;
    if let Some(home) = home {
        // Requests for `/` are redirected to the home page.
        let root = NodePath::root();
        let target = Property::text(format!("{home}.html"));
        session
            .set_property(&root, "sling:resourceType", "sling:redirect".into())
            .map_err(failed)?;
        session.set_property(&root, "sling:target", target).map_err(failed)?;
    }
    let now = SystemTime::now();
    session.commit("import the site", now).map_err(failed)?;
    let path = NodePath::new("/content").map_err(failed)?;
    let request = ReplicationRequest {
        action: ReplicationAction::Activate,
        path,
        depth: SubtreeScope::Subtree,
        user: "system".to_owned(),
    };
    mark_replicated(repository, &[request], now)
        .map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))?;
    Ok(())
}

/// Defines the indexes that resolve vanity paths and aliases, unless the site has its own.
pub(crate) fn put_indexes(session: &mut Session) -> tympan_content::Result<()> {
    let folder = NodePath::new("/oak:index")?;
    if session.node(&folder)?.is_none() {
        session.put_node(&folder, Subtree::new("oak:index", "nt:unstructured"))?;
    }
    for (name, property) in [("slingVanityPath", "sling:vanityPath"), ("slingAlias", "sling:alias")]
    {
        let path = folder.child(name)?;
        if session.node(&path)?.is_some() {
            continue;
        }
        let names = Property::List(ValueType::String, vec![Value::String(property.to_owned())]);
        let index = Subtree::new(name, "oak:QueryIndexDefinition")
            .with_property("type", "property")
            .with_property("propertyNames", names);
        session.put_node(&path, index)?;
    }
    Ok(())
}

/// Creates the agents below `/etc/replication`: the author's to publish, the publisher's to the dispatcher.
fn put_agents(session: &mut Session, neighbors: &SiteNeighbors) -> tympan_content::Result<()> {
    for (folder, kind) in [("/etc", "sling:Folder"), ("/etc/replication", "sling:Folder")] {
        let folder = NodePath::new(folder)?;
        if session.node(&folder)?.is_none() {
            session.add_node(&folder, kind)?;
        }
    }
    let agent = |name: &str, title: &str, kind: &str, target: String| {
        let content = Subtree::new("jcr:content", "nt:unstructured")
            .with_property("jcr:title", title)
            .with_property("enabled", Value::Boolean(true))
            .with_property("serializationType", kind)
            .with_property("transportUri", Property::text(target));
        Subtree::new(name, "cq:Page").with_child(content)
    };
    let receive = format!("{}{}", neighbors.publish_url, tympan_replicate::RECEIVE_PATH);
    let flush = format!("{}{}", neighbors.dispatcher_url, tympan_web::flush_message::FLUSH_PATH);
    let author = Subtree::new("agents.author", "sling:OrderedFolder")
        .with_child(agent("publish", "Publish", "tympan", receive));
    let publish = Subtree::new("agents.publish", "sling:OrderedFolder").with_child(agent(
        "flush",
        "Dispatcher",
        "flush_refetch",
        flush,
    ));
    session.put_node(&NodePath::new("/etc/replication/agents.author")?, author)?;
    session.put_node(&NodePath::new("/etc/replication/agents.publish")?, publish)
}
