//! Modification properties of pages: every change below `jcr:content` updates them.

use std::collections::BTreeSet;
use std::time::SystemTime;

use tympan_content::{JCR_CONTENT, JcrDate, NodePath, Property, Session, Value};

use crate::failure::Result;

/// Records the user and time of a change on each page whose content contains one of the paths.
pub(crate) fn record_page_modification(
    session: &mut Session,
    changed: impl IntoIterator<Item = String>,
    user: &str,
    now: SystemTime,
) -> Result<()> {
    let page_of = |path: String| {
        path.split_once("/jcr:content")
            .filter(|(_, rest)| rest.is_empty() || rest.starts_with('/'))
            .map(|(page, _)| page.to_owned())
    };
    let pages: BTreeSet<String> = changed.into_iter().filter_map(page_of).collect();
    for page in pages {
        let page = NodePath::new(&page)?;
        let content = page.child(JCR_CONTENT)?;
        let is_page = session.node(&page)?.is_some_and(|node| node.is_page());
        if is_page && session.node(&content)?.is_some() {
            let date = Property::Single(Value::Date(JcrDate::from_system_time(now)));
            session.set_property(&content, "cq:lastModified", date)?;
            session.set_property(&content, "cq:lastModifiedBy", Property::text(user))?;
        }
    }
    Ok(())
}
