//! What a viewer sees of versions, and may do to them: what holds for the node where it is, or where it was last.

use super::Version;
use super::entry::{Subject, subject};
use crate::access::{Gate, Inner, Item, Privileges};
use crate::body::Body;
use crate::snapshot::View;
use crate::{Error, NodePath, Result, Snapshot, Subtree};

impl Snapshot {
    /// Returns the state whoever sees this one.
    pub(super) fn unbound(&self) -> Self {
        Self(self.0.clone(), None)
    }

    /// Tells whether the versions of the node at a path are seen: whoever sees the node sees them. A node that is gone
    /// took its own policies along, so that those see its versions who would see it there and may manage versions.
    pub(super) fn shows(&self, path: &NodePath) -> Result<bool> {
        let Some(gate) = &self.1 else { return Ok(true) };
        if self.unbound().node(path)?.is_some() {
            return Ok(self.node(path)?.is_some());
        }
        let (primary_type, wanted) = ("nt:unstructured", Privileges::VERSION_MANAGEMENT);
        let item = Item { path: path.as_str(), property: None, primary_type };
        Ok(gate.sees(path, primary_type) && gate.granted(&item, wanted).contains(wanted))
    }

    /// Decodes what is seen of a version.
    pub(super) fn seen_of(&self, version: &Version, body: &Body) -> Result<Option<Subtree>> {
        let Some(at) = body.find(&version.kept.relative()) else { return Ok(None) };
        let Some(gate) = &self.1 else { return Ok(Some(body.subtree(at))) };
        let now = self.0.history(&version.history)?.map(|history| history.path);
        let mut document = now.unwrap_or_else(|| version.path.clone());
        if !self.shows(&document)? {
            return Ok(None);
        }
        for _ in 0..version.kept.depth {
            document = document.parent().unwrap_or_else(NodePath::root);
        }
        Ok(match gate.mask(&document, body, Inner::All) {
            None => Some(body.subtree(at)),
            Some(mask) => mask.shows(at).then(|| mask.subtree(body, at)),
        })
    }
}

/// Refuses to make, label or remove versions where the viewer lacks `jcr:versionManagement`.
pub(crate) fn check_privilege(base: &Snapshot, pending: &View, gate: &Gate) -> Result<()> {
    for key in pending.versions.keys() {
        let Subject::Version { history, name } = subject(key)? else { continue };
        if name.is_empty() {
            continue;
        }
        let known = pending.history(history)?;
        let known = if known.is_some() { known } else { base.0.history(history)? };
        let Some(path) = known.map(|history| history.path) else { continue };
        let primary_type = match base.unbound().node(&path)? {
            Some(node) => node.primary_type().to_owned(),
            None => "nt:unstructured".to_owned(),
        };
        let item = Item { path: path.as_str(), property: None, primary_type: &primary_type };
        let wanted = Privileges::VERSION_MANAGEMENT;
        if gate.granted(&item, wanted) != wanted {
            return Err(Error::AccessDenied { path, privilege: "jcr:versionManagement" });
        }
    }
    Ok(())
}
