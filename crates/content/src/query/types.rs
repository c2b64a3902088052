//! Which node types are kinds of others, as far as queries and indexes need it.

use std::collections::BTreeSet;

/// The relation of node types.
pub trait TypeHierarchy: Send + Sync + std::fmt::Debug {
    /// Tells whether nodes of a type are of another one too; each type is a kind of itself and of `nt:base`.
    fn is_a(&self, name: &str, ancestor: &str) -> bool;

    /// Returns the types whose nodes are of this type, itself included.
    fn subtypes(&self, name: &str) -> Vec<String>;
}

/// The relation of the types that come with JCR, Oak, Sling, CQ and DAM.
#[derive(Debug, Clone, Copy, Default)]
pub struct StandardTypes;

/// Each type with those that it extends.
const SUPERTYPES: [(&str, &[&str]); 62] = [
    ("nt:hierarchyNode", &["mix:created"]),
    ("nt:folder", &["nt:hierarchyNode"]),
    ("nt:file", &["nt:hierarchyNode"]),
    ("nt:linkedFile", &["nt:hierarchyNode"]),
    ("nt:resource", &["mix:mimeType", "mix:lastModified", "mix:referenceable"]),
    ("oak:Resource", &["mix:mimeType", "mix:lastModified"]),
    ("nt:version", &["mix:referenceable"]),
    ("nt:versionHistory", &["mix:referenceable"]),
    ("nt:unstructured", &[]),
    ("oak:Unstructured", &[]),
    ("oak:QueryIndexDefinition", &["oak:Unstructured"]),
    ("rep:root", &["nt:unstructured"]),
    ("mix:created", &[]),
    ("mix:lastModified", &[]),
    ("mix:title", &[]),
    ("mix:language", &[]),
    ("mix:mimeType", &[]),
    ("mix:etag", &[]),
    ("mix:referenceable", &[]),
    ("mix:lockable", &[]),
    ("mix:shareable", &["mix:referenceable"]),
    ("mix:simpleVersionable", &[]),
    ("mix:versionable", &["mix:simpleVersionable", "mix:referenceable"]),
    ("mix:atomicCounter", &[]),
    ("rep:AccessControllable", &[]),
    ("rep:Policy", &[]),
    ("rep:ACL", &["rep:Policy"]),
    ("rep:CugPolicy", &["rep:Policy"]),
    ("rep:ACE", &[]),
    ("rep:GrantACE", &["rep:ACE"]),
    ("rep:DenyACE", &["rep:ACE"]),
    ("rep:Authorizable", &["mix:referenceable", "nt:hierarchyNode"]),
    ("rep:AuthorizableFolder", &["nt:hierarchyNode"]),
    ("rep:User", &["rep:Authorizable"]),
    ("rep:SystemUser", &["rep:User"]),
    ("rep:Group", &["rep:Authorizable"]),
    ("sling:Resource", &[]),
    ("sling:VanityPath", &[]),
    ("sling:Folder", &["nt:folder"]),
    ("sling:OrderedFolder", &["sling:Folder"]),
    ("sling:Mapping", &["sling:MappingSpec", "nt:hierarchyNode"]),
    ("sling:MappingSpec", &["sling:Resource"]),
    ("sling:MessageEntry", &["nt:hierarchyNode", "sling:Message"]),
    ("sling:Message", &[]),
    ("cq:Page", &["nt:hierarchyNode"]),
    ("cq:PseudoPage", &[]),
    (
        "cq:PageContent",
        &[
            "nt:unstructured",
            "mix:title",
            "mix:created",
            "cq:OwnerTaggable",
            "sling:VanityPath",
            "cq:ReplicationStatus",
            "sling:Resource",
        ],
    ),
    ("cq:Taggable", &[]),
    ("cq:OwnerTaggable", &["cq:Taggable"]),
    ("cq:ReplicationStatus", &[]),
    ("cq:LiveRelationship", &[]),
    ("cq:LiveSync", &["cq:LiveRelationship"]),
    ("cq:Component", &["nt:folder", "mix:title", "sling:Resource"]),
    ("cq:Template", &["nt:hierarchyNode", "mix:title"]),
    ("cq:Tag", &["mix:title", "sling:Resource"]),
    ("cq:EditConfig", &["nt:unstructured"]),
    ("cq:Dialog", &["cq:Panel"]),
    ("cq:Panel", &["cq:Widget"]),
    ("cq:Widget", &["nt:unstructured"]),
    ("cq:ClientLibraryFolder", &["sling:Folder"]),
    ("dam:Asset", &["nt:hierarchyNode"]),
    (
        "dam:AssetContent",
        &["nt:unstructured", "cq:OwnerTaggable", "cq:ReplicationStatus", "mix:lastModified"],
    ),
];

impl TypeHierarchy for StandardTypes {
    fn is_a(&self, name: &str, ancestor: &str) -> bool {
        if name == ancestor || ancestor == "nt:base" {
            return true;
        }
        let found = SUPERTYPES.iter().find(|(known, _)| *known == name);
        found.is_some_and(|(_, supertypes)| {
            supertypes.iter().any(|supertype| self.is_a(supertype, ancestor))
        })
    }

    fn subtypes(&self, name: &str) -> Vec<String> {
        let known = SUPERTYPES.iter().map(|(known, _)| *known);
        let found: BTreeSet<&str> =
            known.filter(|known| self.is_a(known, name)).chain([name]).collect();
        found.into_iter().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_kinds_are_found() {
        assert!(StandardTypes.is_a("cq:Page", "mix:created"));
        assert!(StandardTypes.is_a("x:own", "nt:base") && !StandardTypes.is_a("x:own", "nt:file"));
        assert_eq!(
            StandardTypes.subtypes("sling:Folder"),
            ["cq:ClientLibraryFolder", "sling:Folder", "sling:OrderedFolder"]
        );
        assert_eq!(StandardTypes.subtypes("x:own"), ["x:own"]);
    }
}
