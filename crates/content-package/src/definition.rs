//! The node `vlt:definition` of a stored package: its name, dependencies, installation time and filter.
//!
//! It is a child of the `jcr:content` of the package's file, which then has the mixin `vlt:Package`.

use tympan_content::{
    BlobId, JCR_CONTENT, JcrDate, MIXIN_TYPES, NodePath, Property, Subtree, Value, ValueType,
};

use crate::Result;
use crate::dependency::PackageDependency;
use crate::filter::PackageFilter;
use crate::install_options::AuditStamp;
use crate::install_target::InstallTarget;
use crate::package_id::{PACKAGES_PATH, PackageId};
use crate::package_properties::PackageProperties;
use crate::policy;
use crate::version::PackageVersion;

/// The name of the node.
pub(crate) const DEFINITION_NODE: &str = "vlt:definition";
const PACKAGE_MIXIN: &str = "vlt:Package";
const LAST_UNPACKED_PROPERTY: &str = "lastUnpacked";
const LAST_UNPACKED_BY_PROPERTY: &str = "lastUnpackedBy";
const FILTER_NODE: &str = "filter";

/// The content of a definition.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PackageDefinition {
    pub(crate) id: PackageId,
    pub(crate) dependencies: Vec<PackageDependency>,
    pub(crate) created: Option<JcrDate>,
    pub(crate) created_by: Option<String>,
    pub(crate) last_unpacked: Option<JcrDate>,
    pub(crate) last_unpacked_by: Option<String>,
}

impl PackageDefinition {
    /// Reads a definition; a package without a name in its definition is named after its path.
    pub(crate) fn from_node(path: &NodePath, node: Option<&Subtree>) -> Self {
        let text = |name: &str| node.and_then(|node| node.text(name)).unwrap_or_default();
        let date = |name: &str| match node.and_then(|node| node.properties.get(name)?.first()) {
            Some(Value::Date(date)) => Some(*date),
            _ => None,
        };
        let user = |name: &str| Some(text(name).to_owned()).filter(|user| !user.is_empty());
        let id = if text("name").is_empty() {
            PackageId::from_path(path.as_str(), "")
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
                .flat_map(|value| {
                    PackageDependency::parse_list(&value.to_text()).unwrap_or_default()
                })
                .collect(),
            created: date("jcr:created"),
            created_by: user("jcr:createdBy"),
            last_unpacked: date(LAST_UNPACKED_PROPERTY),
            last_unpacked_by: user(LAST_UNPACKED_BY_PROPERTY),
        }
    }

    pub(crate) fn is_installed(&self) -> bool {
        self.last_unpacked.is_some()
    }
}

/// Creates the definition of a package that was stored and is not installed yet.
pub(crate) fn build_definition_node(
    id: &PackageId,
    properties: &PackageProperties,
    filter: &PackageFilter,
    stamp: &AuditStamp,
) -> Subtree {
    let now = Property::Single(Value::Date(JcrDate::from_system_time(stamp.time)));
    let mut node = Subtree::new(DEFINITION_NODE, "vlt:PackageDefinition")
        .with_property("name", id.name.as_str())
        .with_property("group", id.group.as_str())
        .with_property("version", id.version.as_str())
        .with_property("jcr:created", now.clone())
        .with_property("jcr:createdBy", stamp.user.as_str())
        .with_property("jcr:lastModified", now)
        .with_property("jcr:lastModifiedBy", stamp.user.as_str());
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
        if let Some(value) = properties.get(key).map(str::trim).filter(|value| !value.is_empty()) {
            node.properties.insert(key.to_owned(), value.into());
        }
    }
    node.with_child(filter.to_node(FILTER_NODE))
}

fn set_dependencies(node: &mut Subtree, dependencies: &[PackageDependency]) {
    let values =
        dependencies.iter().map(|dependency| Value::String(dependency.to_string())).collect();
    node.properties.insert("dependencies".into(), Property::List(ValueType::String, values));
}

/// Returns the filter in a definition.
pub(crate) fn read_filter(node: &Subtree) -> Result<PackageFilter> {
    node.child(FILTER_NODE).map_or_else(|| Ok(PackageFilter::default()), PackageFilter::from_node)
}

/// Creates the file node of a stored package.
pub(crate) fn build_file_node(
    name: &str,
    data: BlobId,
    definition: Subtree,
    stamp: &AuditStamp,
) -> Subtree {
    let now = || Property::Single(Value::Date(JcrDate::from_system_time(stamp.time)));
    let content = Subtree::new(JCR_CONTENT, "nt:resource")
        .with_property(
            MIXIN_TYPES,
            Property::List(ValueType::Name, vec![Value::Name(PACKAGE_MIXIN.into())]),
        )
        .with_property("jcr:data", Property::Single(Value::Binary(data)))
        .with_property("jcr:mimeType", "application/zip")
        .with_property("jcr:lastModified", now())
        .with_property("jcr:lastModifiedBy", stamp.user.as_str())
        .with_child(definition);
    Subtree::new(name, "nt:file")
        .with_property("jcr:created", now())
        .with_property("jcr:createdBy", stamp.user.as_str())
        .with_child(content)
}

/// Records the installation time in a definition; `None` marks the package as not installed.
pub(crate) fn set_install_stamp(node: &mut Subtree, stamp: Option<&AuditStamp>) {
    match stamp {
        Some(stamp) => {
            let now = Property::Single(Value::Date(JcrDate::from_system_time(stamp.time)));
            node.properties.insert(LAST_UNPACKED_PROPERTY.into(), now);
            node.properties.insert(LAST_UNPACKED_BY_PROPERTY.into(), stamp.user.as_str().into());
        }
        None => {
            node.properties.remove(LAST_UNPACKED_PROPERTY);
            node.properties.remove(LAST_UNPACKED_BY_PROPERTY);
        }
    }
}

/// Adds a definition to the file of a nested package: not installed, and dependent on the package that contained it.
pub(crate) fn add_nested_definition(
    target: &mut dyn InstallTarget,
    path: &NodePath,
    mut node: Subtree,
    parent: &PackageId,
) -> Result<()> {
    let content = path.child_unchecked(JCR_CONTENT);
    let Some(existing) = target.read_node(&content)? else {
        return Ok(());
    };
    let mut needs = PackageDefinition::from_node(path, Some(&node)).dependencies;
    if !needs.iter().any(|need| need.is_met_by(parent)) {
        needs.push(PackageDependency::exactly(parent));
    }
    set_dependencies(&mut node, &needs);
    let mut properties = existing.properties;
    let mixin = Property::List(ValueType::Name, vec![Value::Name(PACKAGE_MIXIN.into())]);
    if let Some(mixins) = policy::union_values(properties.get(MIXIN_TYPES), Some(&mixin)) {
        properties.insert(MIXIN_TYPES.into(), mixins);
    }
    target.set_properties(&content, properties)?;
    target.put(&content.child_unchecked(DEFINITION_NODE), node)
}

/// Marks the package in this file as installed.
pub(crate) fn mark_installed(
    target: &mut dyn InstallTarget,
    path: &NodePath,
    stamp: Option<&AuditStamp>,
) -> Result<()> {
    let path = path.child_unchecked(JCR_CONTENT).child_unchecked(DEFINITION_NODE);
    let Some(existing) = target.read_node(&path)? else {
        return Ok(());
    };
    let mut node = Subtree { properties: existing.properties, ..Subtree::default() };
    set_install_stamp(&mut node, stamp);
    target.set_properties(&path, node.properties)
}

/// Finds the newest installed version of a package that is newer than `id`.
pub(crate) fn find_newer_installed(
    target: &mut dyn InstallTarget,
    id: &PackageId,
) -> Result<Option<PackageId>> {
    let folder = id.path()?.parent().unwrap_or(NodePath::new(PACKAGES_PATH)?);
    let Some(existing) = target.read_node(&folder)? else {
        return Ok(None);
    };
    let mut newest: Option<PackageId> = None;
    for name in existing.children.iter().filter(|name| name.starts_with(&id.name)) {
        let path = folder.child_unchecked(name);
        let definition = path.child_unchecked(JCR_CONTENT).child_unchecked(DEFINITION_NODE);
        let Some(node) = target.read_node(&definition)? else {
            continue;
        };
        let node = Subtree { properties: node.properties, ..Subtree::default() };
        let stored_definition = PackageDefinition::from_node(&path, Some(&node));
        let is_newer = |than: &PackageId| {
            PackageVersion::new(&stored_definition.id.version)
                .compare(&PackageVersion::new(&than.version))
                .is_gt()
        };
        let is_it = stored_definition.is_installed()
            && stored_definition.id.name == id.name
            && stored_definition.id.group == id.group;
        if is_it && is_newer(id) && newest.as_ref().is_none_or(is_newer) {
            newest = Some(stored_definition.id);
        }
    }
    Ok(newest)
}
