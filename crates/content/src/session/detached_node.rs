//! Nodes that exist in memory only, such as the result of a merge of stored ones.

use std::sync::Arc;

use tympan_store::SortedMap;

use super::edited_document::split_into_records;
use crate::document::record_key;
use crate::model::order_key::OrderKey;
use crate::model::subtree::ROOT_NODE_TYPE;
use crate::snapshot::SnapshotView;
use crate::{Node, NodePath, Result, Snapshot, Subtree};

/// The type of the ancestors of a detached node.
const ANCESTOR_TYPE: &str = "sling:Folder";

impl Snapshot {
    /// Creates a node from a tree, at a path, in a state of its own that has nothing but this tree and empty ancestors.
    /// Nothing is stored, and no other node can be reached from it: what the viewer may see of the tree is the caller's
    /// decision, and everything in it is visible. Its blobs are those of this snapshot.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] if the tree is nested too deeply.
    pub fn detached_node(&self, path: &NodePath, mut tree: Subtree) -> Result<Option<Node>> {
        path.name().clone_into(&mut tree.name);
        let mut ancestors: Vec<&str> = path.names().rev().skip(1).collect();
        if !path.is_root() {
            ancestors.push("");
        }
        for name in ancestors {
            let kind = if name.is_empty() { ROOT_NODE_TYPE } else { ANCESTOR_TYPE };
            tree = Subtree::new(name, kind).with_child(tree);
        }
        let mut records = Vec::new();
        split_into_records(&NodePath::root(), tree, OrderKey::default(), &mut records)?;
        let state = Arc::clone(&self.view.repository_state);
        let mut view = SnapshotView::new(state, self.view.root_id, SortedMap::from_root(None));
        view.is_detached = true;
        for (path, record) in records {
            view.put_record(record_key::record_key(&path)?, Some(Arc::new(record)))?;
        }
        Self { view: Arc::new(view), access_gate: self.access_gate.clone() }.node(path)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::{LookupIndex, Repository, Viewer};

    fn path(text: &str) -> NodePath {
        NodePath::new(text).unwrap()
    }

    #[test]
    fn a_detached_node_shows_its_tree_to_a_viewer_without_rights_and_nothing_else() {
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("admin").unwrap();
        let secret = Subtree::new("", "cq:Component").with_property("jcr:title", "secret");
        session.put_node(&path("/secret"), secret).unwrap();
        session.commit("begin", SystemTime::UNIX_EPOCH).unwrap();
        let nobody = repository.snapshot().unwrap().as_viewer(&Viewer::of_user(Some("nobody")));
        assert!(nobody.node(&path("/secret")).unwrap().is_none());

        let page = Subtree::new("page", "nt:unstructured")
            .with_child(Subtree::new("b", "nt:unstructured").with_property("text", "kept"))
            .with_child(Subtree::new("a", "nt:unstructured"));
        let tree = Subtree::new("", "sling:Folder").with_child(page);
        let node = nobody.detached_node(&path("/mnt/one/two"), tree).unwrap().unwrap();
        assert_eq!(node.path().as_str(), "/mnt/one/two");
        let names = |node: &Node| -> Vec<String> {
            node.children().unwrap().iter().map(|child| child.name().to_owned()).collect()
        };
        let page = node.child("page").unwrap().unwrap();
        assert_eq!(
            (names(&node), names(&page)),
            (vec!["page".into()], vec!["b".into(), "a".into()])
        );
        assert_eq!(page.child("b").unwrap().unwrap().text("text").as_deref(), Some("kept"));
        assert_eq!(node.read_subtree().unwrap().node_count(), 4);
        assert_eq!(names(&node.parent().unwrap().unwrap()), ["two"]);

        let inside = node.snapshot();
        assert!(inside.node(&path("/secret")).unwrap().is_none());
        assert!(inside.look_up_paths(LookupIndex::Type, "cq:Component").unwrap().is_empty());
        assert!(!inside.has_privileges(&path("/secret"), crate::Privileges::READ).unwrap());
    }
}
