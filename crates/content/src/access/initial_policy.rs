//! The initial policies, groups and rights of a repository without any policy.
//!
//! All entries belong to one policy at `/`, narrowed by `rep:globs`, so that no folder has to exist for them.
//! `docs/concepts/access.md` documents them for users.

use std::time::SystemTime;

use crate::access::principal::{ADMIN_USER, ADMINISTRATORS_GROUP, EVERYONE_PRINCIPAL};
use crate::{Error, NodePath, Property, Repository, Result, Session, Subtree, ValueType};

/// The initial groups of a repository.
const INITIAL_GROUPS: [&str; 4] =
    [ADMINISTRATORS_GROUP, AUTHORS_GROUP, ASSETS_GROUP, WORKFLOWS_GROUP];
const AUTHORS_GROUP: &str = "content-authors";
const ASSETS_GROUP: &str = "dam-users";
const WORKFLOWS_GROUP: &str = "workflow-users";

/// The privileges that editing needs.
const EDIT_PRIVILEGES: &[&str] =
    &["jcr:read", "rep:write", "jcr:versionManagement", "jcr:lockManagement", "crx:replicate"];

/// A grant of privileges to a group for some subtrees.
struct InitialGrant {
    principal: &'static str,
    privileges: &'static [&'static str],
    /// The subtrees; an empty list means the root node alone, with its properties.
    subtrees: &'static [&'static str],
}

const INITIAL_GRANTS: [InitialGrant; 6] = [
    InitialGrant { principal: EVERYONE_PRINCIPAL, privileges: &["jcr:read"], subtrees: &[] },
    InitialGrant {
        principal: EVERYONE_PRINCIPAL,
        privileges: &["jcr:read"],
        subtrees: &[
            "/content",
            "/etc.clientlibs",
            "/etc/designs",
            "/libs/clientlibs",
            "/favicon.ico",
        ],
    },
    InitialGrant {
        principal: AUTHORS_GROUP,
        privileges: &["jcr:read"],
        subtrees: &["/apps", "/libs", "/conf", "/etc/tags"],
    },
    InitialGrant {
        principal: AUTHORS_GROUP,
        privileges: EDIT_PRIVILEGES,
        subtrees: &["/content", "/jcr:system/jcr:versionStorage"],
    },
    InitialGrant {
        principal: ASSETS_GROUP,
        privileges: EDIT_PRIVILEGES,
        subtrees: &["/content/dam"],
    },
    InitialGrant {
        principal: WORKFLOWS_GROUP,
        privileges: &["jcr:read"],
        subtrees: &["/var/workflow", "/etc/workflow", "/conf/global/settings/workflow"],
    },
];

impl Repository {
    /// Creates the initial policies and groups of the repository, in one commit, unless it has any policy. Existing
    /// users become authors, because without policies every user was one. Returns true if anything was created.
    ///
    /// # Errors
    /// If the store fails.
    pub fn install_initial_policies(&self, at: SystemTime) -> Result<bool> {
        if self.0.cache.access_policies.policies_of_main(&self.0)?.iter_policies().next().is_some()
        {
            return Ok(false);
        }
        let mut session = self.session("system")?;
        for group in INITIAL_GROUPS {
            match session.accounts().add_group(group) {
                Ok(()) | Err(Error::NodeExists(_)) => {}
                Err(error) => return Err(error),
            }
        }
        for (user, _) in self.users()? {
            if user != ADMIN_USER {
                session.accounts().add_member(AUTHORS_GROUP, &user)?;
            }
        }
        put_initial_policies(&mut session)?;
        session.commit("install the initial policies", at)?;
        Ok(true)
    }
}

fn put_initial_policies(session: &mut Session) -> Result<()> {
    let mut policy = Subtree::new("rep:policy", "rep:ACL");
    for (number, grant) in INITIAL_GRANTS.iter().enumerate() {
        let name = if number == 0 { "allow".to_owned() } else { format!("allow{}", number - 1) };
        policy.put_child(build_grant_entry(name, grant)?);
    }
    session.put_node(&NodePath::new("/rep:policy")?, policy)
}

fn build_grant_entry(name: String, grant: &InitialGrant) -> Result<Subtree> {
    let texts =
        |list: &[&'static str]| Property::parse_list(ValueType::String, list.iter().copied());
    let restrictions = Subtree::new("rep:restrictions", "rep:Restrictions");
    let restrictions = match grant.subtrees {
        [] => {
            restrictions.with_property("rep:current", Property::parse_list(ValueType::Name, ["*"])?)
        }
        subtrees => restrictions.with_property("rep:globs", texts(subtrees)?),
    };
    let privileges = Property::parse_list(ValueType::Name, grant.privileges.iter().copied())?;
    Ok(Subtree::new(name, "rep:GrantACE")
        .with_property("rep:principalName", grant.principal)
        .with_property("rep:privileges", privileges)
        .with_child(restrictions))
}
