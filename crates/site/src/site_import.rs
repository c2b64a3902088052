//! A site as content of an instance.

use std::io::Cursor;
use std::path::Path;
use std::time::SystemTime;

use tympan_content::{
    NodePath, Property, Repository, Session, Subtree, SubtreeScope, Value, ValueType,
};
use tympan_content_package::{ContentPackage, PackageLimits};
use tympan_replicate::{ReplicationAction, ReplicationRequest, mark_replicated};

use crate::archive::{CONTENT_ROOTS, build_site_package};
use crate::bench_page::import_bench_pages;
use crate::error::{Error, Result};

/// The sample site as a content package.
const SAMPLE_PACKAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/site.zip"));
/// The description of the benchmark pages.
const BENCH_SPEC: &str = include_str!("../../../site/bench/bench.json");

/// The URLs at which the instances of a site reach each other.
#[derive(Debug)]
pub struct SiteNeighbors {
    /// The publisher's URL, for the author's agent.
    pub publish_url: String,
    /// The dispatcher's URL, for the publisher's agent.
    pub dispatcher_url: String,
}

/// Reads a site folder, or the sample, as a package.
///
/// # Errors
/// With `file:line: message` if the site is malformed.
pub fn read_site_package(site: Option<&Path>) -> Result<ContentPackage<Cursor<Vec<u8>>>> {
    let (bytes, name) = match site {
        Some(dir) => {
            let bytes = build_site_package(dir, &CONTENT_ROOTS, None).map_err(|source| {
                let action = format!("cannot read the site `{}`", dir.display());
                Error::File { action, source }
            })?;
            (bytes, dir.display().to_string())
        }
        None => (SAMPLE_PACKAGE.to_vec(), "site".to_owned()),
    };
    Ok(ContentPackage::read(Cursor::new(bytes), &name, &PackageLimits::default())?)
}

/// Imports a site into an empty repository, with agents and the replication status of a published site, in one commit
/// and a separate one for that status. `progress` is called with the number of nodes done and to do.
///
/// # Errors
/// If the site is malformed or content refuses it.
pub fn import_site(
    repository: &Repository,
    package: &mut ContentPackage<Cursor<Vec<u8>>>,
    neighbors: &SiteNeighbors,
    home: Option<&str>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<()> {
    let failed = |error| Error::Import(Box::new(error));
    let mut session = repository.session("system").map_err(failed)?;
    package.install(&mut session, &mut |step| progress(step.done_nodes, step.total_nodes))?;
    import_bench_pages(&mut session, BENCH_SPEC)?;
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
    mark_replicated(repository, &[request], now)?;
    Ok(())
}

/// Defines the indexes that resolve vanity paths and aliases, unless the site has its own.
pub fn put_indexes(session: &mut Session) -> tympan_content::Result<()> {
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
