//! On and off times: pages that appear and vanish at given times.
//!
//! `onTime` and `offTime` are properties of a page's `jcr:content`, as in AEM. An activated page with a future `onTime`
//! is sent only at that time, so that visitors keep what they have until then. At `offTime` it is withdrawn, and an
//! activation after that sends nothing.
use std::time::SystemTime;

use tympan_content::{JcrDate, Node, Property, Value};

use crate::Result;

/// Returns the on or off time of a page.
pub(crate) fn read_time(node: &Node, name: &str) -> tympan_content::Result<Option<JcrDate>> {
    let content = node.content_node()?;
    let property = content.and_then(|content| content.property(name));
    Ok(match property.as_ref().and_then(Property::first) {
        Some(Value::Date(date)) => Some(*date),
        Some(value) => JcrDate::parse_lenient(&value.to_text()).ok(),
        None => None,
    })
}

/// Returns true if visitors may have a page at a given time.
///
/// # Errors
/// If content fails.
pub(crate) fn is_due(node: &Node, now: SystemTime) -> Result<bool> {
    if !node.is_page() {
        return Ok(true);
    }
    let now = JcrDate::from_system_time(now).millis;
    let is_early = read_time(node, "onTime")?.is_some_and(|on| on.millis > now);
    let is_late = read_time(node, "offTime")?.is_some_and(|off| off.millis <= now);
    Ok(!is_early && !is_late)
}
