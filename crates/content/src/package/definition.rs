//! The node `vlt:definition` of a stored package: its name, what it needs, when it was installed, its filter.
//!
//! It stands below the `jcr:content` of the package's file, which has the mixin `vlt:Package` then.

use super::dependency::Dependency;
use super::filter::Filter;
use super::options::Stamp;
use super::properties::{PACKAGES, PackageId, Properties};
use super::target::InstallTarget;
use super::version::Version;
use crate::{
    Date, JCR_CONTENT, MIXIN_TYPES, NodePath, Property, Result, Subtree, Value, ValueType,
};

/// The name of the node.
pub(super) const DEFINITION: &str = "vlt:definition";
const PACKAGE_MIXIN: &str = "vlt:Package";
const LAST_UNPACKED: &str = "lastUnpacked";
const LAST_UNPACKED_BY: &str = "lastUnpackedBy";
const FILTER: &str = "filter";

/// What a definition says.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Definition {
    pub(super) id: PackageId,
    pub(super) dependencies: Vec<Dependency>,
    pub(super) created: Option<Date>,
    pub(super) created_by: Option<String>,
    pub(super) last_unpacked: Option<Date>,
    pub(super) last_unpacked_by: Option<String>,
}

impl Definition {
    /// Reads what a definition says; a package whose definition lacks a name is named by its path.
    pub(super) fn of(path: &NodePath, node: Option<&Subtree>) -> Self {
        let text = |name: &str| node.and_then(|node| node.text(name)).unwrap_or_default();
        let date = |name: &str| match node.and_then(|node| node.properties.get(name)?.first()) {
            Some(Value::Date(date)) => Some(*date),
            _ => None,
        };
        let user = |name: &str| Some(text(name).to_owned()).filter(|user| !user.is_empty());
        let id = if text("name").is_empty() {
            PackageId::of_path(path.as_str(), "")
        } else {
            PackageId {
                group: text("group").to_owned(),
                name: text("name").to_owned(),
                version: text("version").to_owned(),
            }
        };
        let needs = node.and_then(|node| node.properties.get("dependencies"));
        let needs = needs.map(Property::values).unwrap_or_default();
        Self {
            id,
            dependencies: needs
                .iter()
                .flat_map(|value| Dependency::parse_list(&value.to_text()).unwrap_or_default())
                .collect(),
            created: date("jcr:created"),
            created_by: user("jcr:createdBy"),
            last_unpacked: date(LAST_UNPACKED),
            last_unpacked_by: user(LAST_UNPACKED_BY),
        }
    }

    pub(super) fn is_installed(&self) -> bool {
        self.last_unpacked.is_some()
    }
}

/// Makes the definition of a package that was just stored and is not installed yet.
pub(super) fn definition(
    id: &PackageId,
    properties: &Properties,
    filter: &Filter,
    stamp: &Stamp,
) -> Subtree {
    let now = Property::Single(Value::Date(Date::from_system_time(stamp.at)));
    let mut node = Subtree::new(DEFINITION, "vlt:PackageDefinition")
        .with("name", id.name.as_str())
        .with("group", id.group.as_str())
        .with("version", id.version.as_str())
        .with("jcr:created", now.clone())
        .with("jcr:createdBy", stamp.user.as_str())
        .with("jcr:lastModified", now)
        .with("jcr:lastModifiedBy", stamp.user.as_str());
    set_dependencies(&mut node, &properties.dependencies);
    const KEPT: [&str; 6] = [
        "description",
        "acHandling",
        "cugHandling",
        "subPackageHandling",
        "packageType",
        "requiresRoot",
    ];
    for key in KEPT {
        if let Some(value) = properties.find(key).map(str::trim).filter(|value| !value.is_empty()) {
            node.properties.insert(key.to_owned(), value.into());
        }
    }
    node.with_child(filter.to_node(FILTER))
}

fn set_dependencies(node: &mut Subtree, dependencies: &[Dependency]) {
    let values = dependencies.iter().map(|one| Value::String(one.to_string())).collect();
    node.properties.insert("dependencies".into(), Property::List(ValueType::String, values));
}

/// Returns the filter that a definition holds.
pub(super) fn filter_of(node: &Subtree) -> Result<Filter> {
    node.child(FILTER).map_or_else(|| Ok(Filter::default()), Filter::of_node)
}

/// Makes the node of a stored package's file.
pub(super) fn file(name: &str, data: crate::BlobId, definition: Subtree, stamp: &Stamp) -> Subtree {
    let now = || Property::Single(Value::Date(Date::from_system_time(stamp.at)));
    let content = Subtree::new(JCR_CONTENT, "nt:resource")
        .with(MIXIN_TYPES, Property::List(ValueType::Name, vec![Value::Name(PACKAGE_MIXIN.into())]))
        .with("jcr:data", Property::Single(Value::Binary(data)))
        .with("jcr:mimeType", "application/zip")
        .with("jcr:lastModified", now())
        .with("jcr:lastModifiedBy", stamp.user.as_str())
        .with_child(definition);
    Subtree::new(name, "nt:file")
        .with("jcr:created", now())
        .with("jcr:createdBy", stamp.user.as_str())
        .with_child(content)
}

/// Notes in a definition when it was installed, or that it is not.
pub(super) fn set_installed(node: &mut Subtree, stamp: Option<&Stamp>) {
    match stamp {
        Some(stamp) => {
            let now = Property::Single(Value::Date(Date::from_system_time(stamp.at)));
            node.properties.insert(LAST_UNPACKED.into(), now);
            node.properties.insert(LAST_UNPACKED_BY.into(), stamp.user.as_str().into());
        }
        None => {
            node.properties.remove(LAST_UNPACKED);
            node.properties.remove(LAST_UNPACKED_BY);
        }
    }
}

/// Gives the file of a package that another package brought a definition of its own: not installed, and in need of
/// the package that it came with.
pub(super) fn register_nested(
    target: &mut dyn InstallTarget,
    path: &NodePath,
    mut node: Subtree,
    parent: &PackageId,
) -> Result<()> {
    let content = path.child_unchecked(JCR_CONTENT);
    let Some(existing) = target.node(&content)? else {
        return Ok(());
    };
    let mut needs = Definition::of(path, Some(&node)).dependencies;
    if !needs.iter().any(|need| need.is_met_by(parent)) {
        needs.push(Dependency::on(parent));
    }
    set_dependencies(&mut node, &needs);
    let mut properties = existing.properties;
    let mixin = Property::List(ValueType::Name, vec![Value::Name(PACKAGE_MIXIN.into())]);
    if let Some(mixins) = super::policy::union(properties.get(MIXIN_TYPES), Some(&mixin)) {
        properties.insert(MIXIN_TYPES.into(), mixins);
    }
    target.set_properties(&content, properties)?;
    target.put(&content.child_unchecked(DEFINITION), node)
}

/// Notes that the package in this file is installed.
pub(super) fn mark_installed(
    target: &mut dyn InstallTarget,
    path: &NodePath,
    stamp: Option<&Stamp>,
) -> Result<()> {
    let path = path.child_unchecked(JCR_CONTENT).child_unchecked(DEFINITION);
    let Some(existing) = target.node(&path)? else {
        return Ok(());
    };
    let mut node = Subtree { properties: existing.properties, ..Subtree::default() };
    set_installed(&mut node, stamp);
    target.set_properties(&path, node.properties)
}

/// Finds the newest installed version of a package that is newer than `id`.
pub(super) fn newer_installed(
    target: &mut dyn InstallTarget,
    id: &PackageId,
) -> Result<Option<PackageId>> {
    let folder = id.path()?.parent().unwrap_or(NodePath::new(PACKAGES)?);
    let Some(existing) = target.node(&folder)? else {
        return Ok(None);
    };
    let mut newest: Option<PackageId> = None;
    for name in existing.children.iter().filter(|name| name.starts_with(&id.name)) {
        let path = folder.child_unchecked(name);
        let definition = path.child_unchecked(JCR_CONTENT).child_unchecked(DEFINITION);
        let Some(node) = target.node(&definition)? else {
            continue;
        };
        let node = Subtree { properties: node.properties, ..Subtree::default() };
        let known = Definition::of(&path, Some(&node));
        let is_newer = |than: &PackageId| {
            Version::new(&known.id.version).compare(&Version::new(&than.version)).is_gt()
        };
        let is_it = known.is_installed() && known.id.name == id.name && known.id.group == id.group;
        if is_it && is_newer(id) && newest.as_ref().is_none_or(is_newer) {
            newest = Some(known.id);
        }
    }
    Ok(newest)
}
