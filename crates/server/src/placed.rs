//! Which components people may put where: the policies of containers and templates hold for writes, too.
//!
//! In: the components that a request gave a type, moved or copied, the state before it, and its pending state. Out: a
//! refusal of the first that its container does not allow. What lay there with the same type before passes, so that
//! content which is older than its policy can be edited.
//!
//! Not here: what policies say (`render`), and packages, replication and workflows, which carry content as it is.

use tympan_content::{NodePath, Session, Snapshot, Viewer};
use tympan_render::Policy;

use crate::failure::Failure;
use crate::settable::Refused;

/// Places at which a request put components, with the operation of a batch that did it.
#[derive(Debug, Default)]
pub(crate) struct Placed(Vec<(NodePath, usize)>);

impl Placed {
    /// Notes a node that was given a type.
    pub(crate) fn add(&mut self, path: &NodePath, operation: usize) {
        self.0.push((path.clone(), operation));
    }

    /// Notes a node that was moved or copied. Another name in the same container is no other place.
    pub(crate) fn add_transfer(&mut self, from: &NodePath, to: &NodePath, operation: usize) {
        if from.parent() != to.parent() {
            self.add(to, operation);
        }
    }

    /// Refuses a component that may not lie where it was put.
    ///
    /// # Errors
    /// With the operation that put it there; errors of the store.
    pub(crate) fn check(&self, begun: &Snapshot, session: &mut Session) -> Result<(), Refused> {
        if self.0.is_empty() {
            return Ok(());
        }
        // A policy holds for those, too, who do not see the components.
        let system = Viewer::system();
        let pending = session.snapshot().map_err(|error| Refused::new(0, error))?;
        let (before, after) = (begun.seen_by(&system), pending.seen_by(&system));
        for (path, operation) in &self.0 {
            let refusal = refusal_of(&before, &after, path);
            if let Some(failure) = refusal.map_err(|error| Refused::new(*operation, error))? {
                return Err(Refused { operation: *operation, failure: Box::new(failure) });
            }
        }
        Ok(())
    }
}

/// Says why a component may not lie at a place, if so.
fn refusal_of(
    before: &Snapshot,
    after: &Snapshot,
    path: &NodePath,
) -> Result<Option<Failure>, tympan_content::Error> {
    let Some(node) = after.node(path)? else { return Ok(None) };
    let Some(kind) = node.resource_type() else { return Ok(None) };
    let known = before.node(path)?.and_then(|node| node.resource_type());
    if known.as_ref() == Some(&kind) {
        return Ok(None);
    }
    let Some(container) = node.parent()? else { return Ok(None) };
    let Some(policy) = Policy::of(&container)? else { return Ok(None) };
    if policy.allows(after, &kind)? {
        return Ok(None);
    }
    let entries: Vec<&str> = policy.entries().collect();
    let allowed = match entries.as_slice() {
        [] => "nothing may".to_owned(),
        entries => format!("allowed are {}", entries.join(", ")),
    };
    let message = format!("`{kind}` may not lie in `{}`: {allowed}", container.path());
    Ok(Some(Failure::unfit(message).with("path", path.as_str())))
}
