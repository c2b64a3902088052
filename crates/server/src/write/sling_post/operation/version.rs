//! Versions: checking in and out, and restoring a version of a node.

use tympan_content::{CheckInOptions, CheckOutState, MIXIN_TYPES, Node, NodePath, Property, Value};

use super::PostOperation;
use crate::failure::{RequestFailure, Result};
use crate::write::sling_post::form_field::PostFields;

impl PostOperation<'_> {
    /// Checks a node in or out, or restores one of its versions.
    pub(super) fn change_version(
        &mut self,
        operation: &str,
        path: &str,
        fields: &PostFields,
    ) -> Result<()> {
        path.clone_into(&mut self.outcome.path);
        let path = NodePath::new(path)?;
        match operation {
            "checkin" => self.check_in(&path)?,
            "checkout" => self.session.versions().check_out(&path)?,
            _ => {
                let missing = || RequestFailure::bad_request("`:version` is missing");
                let version = fields.command_value(":version").ok_or_else(missing)?;
                self.session.versions().restore_node(
                    &path,
                    version,
                    self.now,
                    CheckOutState::CheckedOut,
                )?;
            }
        }
        let keyword = match operation {
            "checkin" => "checkin",
            "checkout" => "checkout",
            _ => "restored",
        };
        self.outcome.changes.push((keyword, vec![path.to_string()]));
        Ok(())
    }

    fn check_in(&mut self, path: &NodePath) -> Result<()> {
        let how = CheckInOptions {
            comment: "",
            created_at: self.now,
            check_out_state: CheckOutState::CheckedIn,
        };
        self.session.versions().check_in(path, &how)?;
        Ok(())
    }

    /// Checks a node out if it is versionable.
    pub(super) fn check_out(&mut self, path: &NodePath) -> Result<()> {
        let is_in = |node: Node| {
            let is_out = node.property("jcr:isCheckedOut");
            let is_out = is_out.as_ref().and_then(Property::first);
            is_out.is_some_and(|is_out| *is_out == Value::Boolean(false))
        };
        // Only checked-in nodes need a check-out and the permission for it.
        if !self.session.node(path)?.is_some_and(is_in) {
            return Ok(());
        }
        match self.session.versions().check_out(path) {
            Ok(()) | Err(tympan_content::Error::InvalidEdit { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Checks in the versionable nodes that this request created.
    pub(super) fn check_in_created(&mut self) -> Result<()> {
        let created = self.outcome.changes.iter().filter(|(keyword, _)| *keyword == "created");
        let paths: Vec<String> = created.filter_map(|(_, paths)| paths.first().cloned()).collect();
        for path in paths {
            let path = NodePath::new(&path)?;
            let is_versionable = self.session.node(&path)?.is_some_and(|node| {
                let mixins = node.property(MIXIN_TYPES);
                let mixins = mixins.as_ref().map(Property::values).unwrap_or_default();
                mixins.iter().any(|mixin| mixin.as_str() == Some("mix:versionable"))
            });
            if is_versionable {
                self.check_in(&path)?;
                self.outcome.changes.push(("checkin", vec![path.to_string()]));
            }
        }
        Ok(())
    }
}
