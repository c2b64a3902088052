//! The accounts of a repository, and its states as a viewer sees them.

use std::sync::Arc;

use crate::access::access_gate::{AccessFingerprint, AccessGate};
use crate::access::principal::ViewerPrincipals;
use crate::access::privilege::Privileges;
use crate::access::restriction::AccessedItem;
use crate::access::viewer::Viewer;
use crate::{NodePath, Repository, Result, Snapshot};

impl Repository {
    /// Returns true if the named user can log in: it exists, is not disabled and is not a service user.
    ///
    /// # Errors
    /// If the store fails.
    pub fn can_log_in(&self, user: &str) -> Result<bool> {
        Ok(self.0.cache.access_policies.policies_of_main(&self.0)?.accounts.can_log_in(user))
    }

    /// Returns the path of a user or group.
    ///
    /// # Errors
    /// If the store fails.
    pub fn account_path(&self, id: &str) -> Result<Option<NodePath>> {
        Ok(self.0.cache.access_policies.policies_of_main(&self.0)?.accounts.path_of(id).cloned())
    }

    /// Returns the identifier (`jcr:uuid`) of a user, which distinguishes it from former and later users of the same
    /// name.
    ///
    /// # Errors
    /// If the store fails.
    pub fn account_identifier(&self, user: &str) -> Result<Option<String>> {
        let policies = self.0.cache.access_policies.policies_of_main(&self.0)?;
        Ok(policies.accounts.identifier_of(user).map(str::to_owned))
    }

    /// Returns every user, sorted by name, and whether it is disabled.
    ///
    /// # Errors
    /// If the store fails.
    pub fn users(&self) -> Result<Vec<(String, bool)>> {
        let policies = self.0.cache.access_policies.policies_of_main(&self.0)?;
        Ok(policies.accounts.users().map(|(id, disabled)| (id.to_owned(), disabled)).collect())
    }

    /// Returns every group, sorted by name.
    ///
    /// # Errors
    /// If the store fails.
    pub fn groups(&self) -> Result<Vec<String>> {
        let policies = self.0.cache.access_policies.policies_of_main(&self.0)?;
        Ok(policies.accounts.groups().map(str::to_owned).collect())
    }

    /// Returns the groups of a viewer, direct and transitive; `everyone` is the last.
    ///
    /// # Errors
    /// If the store fails.
    pub fn groups_of_viewer(&self, viewer: &Viewer) -> Result<Vec<String>> {
        let groups = self.principals_of(viewer)?.groups;
        Ok(groups.into_iter().map(|(group, _)| group).collect())
    }

    /// Returns the paths of the groups that list an identifier as a member.
    pub(crate) fn groups_listing_member(&self, uuid: &str) -> Result<Vec<NodePath>> {
        let policies = self.0.cache.access_policies.policies_of_main(&self.0)?;
        Ok(policies.accounts.direct_groups_of(uuid).cloned().collect())
    }

    fn principals_of(&self, viewer: &Viewer) -> Result<ViewerPrincipals> {
        Ok(self
            .0
            .cache
            .access_policies
            .policies_of_main(&self.0)?
            .accounts
            .principals_for(&viewer.0))
    }

    /// Returns the number of documents read to find policies and accounts since the repository was opened.
    #[must_use]
    pub fn policy_documents_read(&self) -> u64 {
        self.0.cache.access_policies.documents_read()
    }
}

impl Snapshot {
    /// Returns the same state as the viewer may see it; items that it may not read look absent.
    ///
    /// If the snapshot already has another viewer, the result shows the whole state, not that viewer's part of it. If
    /// the policies cannot be read, nothing is visible and [`Snapshot::failure`] returns the reason.
    #[must_use]
    pub fn as_viewer(&self, viewer: &Viewer) -> Self {
        self.with_access_gate(AccessGate::open(self, viewer))
    }

    /// Returns the same state as the viewer may see it, and compares each decision with that for another viewer;
    /// [`Snapshot::is_seen_alike`] returns the result.
    #[must_use]
    pub fn as_viewer_compared(&self, viewer: &Viewer, compared_viewer: &Viewer) -> Self {
        match (AccessGate::open(self, viewer), AccessGate::open(self, compared_viewer)) {
            (Some(own), Some(compared_gate)) => {
                self.with_access_gate(Some(Arc::new(own.compared_with(&compared_gate))))
            }
            (own, _) => self.with_access_gate(own),
        }
    }

    /// Returns true if everything read so far, absent items included, looks the same to the other viewer of
    /// [`Snapshot::as_viewer_compared`]; `None` if there is no other viewer.
    #[must_use]
    pub fn is_seen_alike(&self) -> Option<bool> {
        self.access_gate.as_ref()?.is_decided_alike()
    }

    /// Returns the permissions of the viewer without its identity; `None` for the program itself. Viewers of the same
    /// state with equal fingerprints see the same content.
    #[must_use]
    pub fn access_fingerprint(&self) -> Option<AccessFingerprint> {
        self.access_gate.as_ref().map(|gate| gate.fingerprint())
    }

    /// Returns true if the snapshot's viewer has privileges at a path; the node need not exist.
    ///
    /// # Errors
    /// If the store fails.
    pub fn has_privileges(&self, path: &NodePath, privileges: Privileges) -> Result<bool> {
        let Some(gate) = &self.access_gate else { return Ok(true) };
        let node = self.unrestricted().node(path)?;
        let primary_type = node.as_ref().map_or("", |node| node.primary_type());
        let item = AccessedItem { path: path.as_str(), property: None, primary_type };
        Ok(gate.granted_privileges(&item, privileges).contains(privileges))
    }

    /// Returns true if the snapshot's viewer has privileges for the repository as a whole, such as that for node types.
    #[must_use]
    pub fn has_repository_privileges(&self, privileges: Privileges) -> bool {
        let gate = self.access_gate.as_ref();
        gate.is_none_or(|gate| gate.granted_in_repository(privileges).contains(privileges))
    }

    /// Returns the privileges that the snapshot's viewer has at a path.
    ///
    /// # Errors
    /// If the store fails.
    pub fn privileges(&self, path: &NodePath) -> Result<Privileges> {
        let Some(gate) = &self.access_gate else { return Ok(Privileges::ALL) };
        let node = self.unrestricted().node(path)?;
        let primary_type = node.as_ref().map_or("", |node| node.primary_type());
        let item = AccessedItem { path: path.as_str(), property: None, primary_type };
        Ok(gate.granted_privileges(&item, Privileges::ALL))
    }

    /// Returns true if the snapshot's viewer may see a node at a path of which only the type is known, such as a
    /// removed node.
    #[must_use]
    pub fn can_see(&self, path: &NodePath, primary_type: &str) -> bool {
        self.access_gate.as_ref().is_none_or(|gate| gate.can_see(path, primary_type))
    }
}
