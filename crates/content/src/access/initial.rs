//! The policies, groups and rights that a repository without any policy begins with.
//!
//! All entries stand in one policy at `/`, narrowed by `rep:globs`, so that no folder has to exist for them.
//! `docs/concepts/access.md` lists them for people.

use std::time::SystemTime;

use crate::access::principals::{ADMIN, ADMINISTRATORS, EVERYONE};
use crate::{Error, NodePath, Property, Repository, Result, Session, Subtree, ValueType};

/// The groups that a repository begins with.
const GROUPS: [&str; 4] = [ADMINISTRATORS, AUTHORS, ASSETS, WORKFLOWS];
const AUTHORS: &str = "content-authors";
const ASSETS: &str = "dam-users";
const WORKFLOWS: &str = "workflow-users";

/// What editing needs.
const EDIT: &[&str] =
    &["jcr:read", "rep:write", "jcr:versionManagement", "jcr:lockManagement", "crx:replicate"];

/// Who may do what where.
struct Grant {
    principal: &'static str,
    privileges: &'static [&'static str],
    /// The subtrees; none means the root node alone, with its properties.
    subtrees: &'static [&'static str],
}

const GRANTS: [Grant; 6] = [
    Grant { principal: EVERYONE, privileges: &["jcr:read"], subtrees: &[] },
    Grant {
        principal: EVERYONE,
        privileges: &["jcr:read"],
        subtrees: &[
            "/content",
            "/etc.clientlibs",
            "/etc/designs",
            "/libs/clientlibs",
            "/favicon.ico",
        ],
    },
    Grant {
        principal: AUTHORS,
        privileges: &["jcr:read"],
        subtrees: &["/apps", "/libs", "/conf", "/etc/tags"],
    },
    Grant {
        principal: AUTHORS,
        privileges: EDIT,
        subtrees: &["/content", "/jcr:system/jcr:versionStorage"],
    },
    Grant { principal: ASSETS, privileges: EDIT, subtrees: &["/content/dam"] },
    Grant {
        principal: WORKFLOWS,
        privileges: &["jcr:read"],
        subtrees: &["/var/workflow", "/etc/workflow", "/conf/global/settings/workflow"],
    },
];

impl Repository {
    /// Gives the repository its first policies and groups, in one commit, unless it has any policy. Users that are there
    /// already become authors, as without policies every user was one. Tells whether there was anything to do.
    ///
    /// # Errors
    /// If the store fails.
    pub fn install_initial_policies(&self, at: SystemTime) -> Result<bool> {
        if self.0.bodies.access.of_main(&self.0)?.policies().next().is_some() {
            return Ok(false);
        }
        let mut session = self.session("system")?;
        for group in GROUPS {
            match session.add_group(group) {
                Ok(()) | Err(Error::NodeExists(_)) => {}
                Err(error) => return Err(error),
            }
        }
        for (user, _) in self.users()? {
            if user != ADMIN {
                session.add_member(AUTHORS, &user)?;
            }
        }
        put_policy(&mut session)?;
        session.commit("install the initial policies", at)?;
        Ok(true)
    }
}

fn put_policy(session: &mut Session) -> Result<()> {
    let mut policy = Subtree::new("rep:policy", "rep:ACL");
    for (number, grant) in GRANTS.iter().enumerate() {
        let name = if number == 0 { "allow".to_owned() } else { format!("allow{}", number - 1) };
        policy.put_child(entry(name, grant)?);
    }
    session.put(&NodePath::new("/rep:policy")?, policy)
}

fn entry(name: String, grant: &Grant) -> Result<Subtree> {
    let texts =
        |list: &[&'static str]| Property::parse_list(ValueType::String, list.iter().copied());
    let restrictions = Subtree::new("rep:restrictions", "rep:Restrictions");
    let restrictions = match grant.subtrees {
        [] => restrictions.with("rep:current", Property::parse_list(ValueType::Name, ["*"])?),
        subtrees => restrictions.with("rep:globs", texts(subtrees)?),
    };
    let privileges = Property::parse_list(ValueType::Name, grant.privileges.iter().copied())?;
    Ok(Subtree::new(name, "rep:GrantACE")
        .with("rep:principalName", grant.principal)
        .with("rep:privileges", privileges)
        .with_child(restrictions))
}
