//! The place of a component in an export: the containers and experience fragments around it, and the budget that all
//! components of the export share.
//!
//! Invariants
//! * A fragment that is open is not opened again, so that fragments that contain each other end.
//! * Number of components and bytes of values are bounded per export, so that every export ends, also one of fragments
//!   that name many others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Result};
use crate::model_value::{ModelMap, ModelValue};
use crate::page_reader::is_at_or_below;

/// The maximum number of components of one export.
const MAX_COMPONENTS: usize = 10_000;

/// The maximum size of the values of one export, in bytes.
const MAX_OUTPUT_BYTES: usize = 8 * 1024 * 1024;

/// The size of a value apart from its text, about that of its punctuation in JSON.
const VALUE_BYTES: usize = 4;

/// The member that holds the components of a container, which were counted when they were exported.
const COUNTED_MEMBER: &str = ":items";

/// The containers and experience fragments around a component, and the budget of its export.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExportScope {
    /// The number of containers around the component. An experience fragment counts as several.
    pub(crate) nesting: usize,
    fragment: Option<Arc<OpenFragment>>,
    budget: Arc<ExportBudget>,
}

/// An experience fragment that is being exported.
#[derive(Debug)]
struct OpenFragment {
    /// The path of the component that shows the fragment.
    component: String,
    /// The path of the fragment's content.
    content: String,
    outer: Option<Arc<OpenFragment>>,
}

/// The components and bytes that an export has used.
#[derive(Debug, Default)]
struct ExportBudget {
    components: AtomicUsize,
    output_bytes: AtomicUsize,
}

impl ExportScope {
    /// Returns the scope of the components in a container.
    pub(crate) fn inside_container(&self, depth: usize) -> ExportScope {
        ExportScope { nesting: self.nesting + depth, ..self.clone() }
    }

    /// Returns the scope of the components of a fragment that a component shows, or nothing if the fragment is open.
    pub(crate) fn inside_fragment(
        &self,
        component: &str,
        content: &str,
        depth: usize,
    ) -> Option<ExportScope> {
        let mut open_fragments =
            std::iter::successors(self.fragment.as_deref(), |fragment| fragment.outer.as_deref());
        // The fragment may also be that of the exported resource, which no component shows.
        let is_open = is_at_or_below(component, content)
            || open_fragments.any(|fragment| {
                fragment.content == content || is_at_or_below(&fragment.component, content)
            });
        if is_open {
            return None;
        }
        let fragment = OpenFragment {
            component: component.to_owned(),
            content: content.to_owned(),
            outer: self.fragment.clone(),
        };
        let scope = self.inside_container(depth);
        Some(ExportScope { fragment: Some(Arc::new(fragment)), ..scope })
    }

    /// Counts a component; returns whether the budget allows it.
    pub(crate) fn count_component(&self) -> bool {
        self.budget.components.fetch_add(1, Ordering::Relaxed);
        self.check().is_ok()
    }

    /// Counts the values of a component, and returns them with their models exported.
    pub(crate) fn count_output(&self, map: ModelMap) -> ModelMap {
        map.into_iter()
            .map(|(name, value)| {
                self.count_bytes(name.len());
                let value =
                    if &*name == COUNTED_MEMBER { value } else { self.exported_value(value) };
                (name, value)
            })
            .collect()
    }

    /// Counts a value, and returns it with its models exported; nothing once the budget is exceeded.
    fn exported_value(&self, value: ModelValue) -> ModelValue {
        let text_bytes = match &value {
            ModelValue::Text(text) | ModelValue::Page(text) => text.len(),
            ModelValue::Constant { name, .. } => name.len(),
            ModelValue::Resource(resource) => resource.path().len(),
            _ => 0,
        };
        self.count_bytes(VALUE_BYTES + text_bytes);
        if self.check().is_err() {
            return ModelValue::Null;
        }
        match value {
            ModelValue::Model(model) => self.exported_map(model.export()),
            ModelValue::Map(map) => self.exported_map(Arc::unwrap_or_clone(map)),
            ModelValue::List(values) => {
                ModelValue::list(values.iter().map(|value| self.exported_value(value.clone())))
            }
            other => other,
        }
    }

    fn exported_map(&self, map: ModelMap) -> ModelValue {
        let entries = map.into_iter().map(|(name, value)| {
            self.count_bytes(name.len());
            (name, self.exported_value(value))
        });
        entries.collect::<ModelMap>().into()
    }

    fn count_bytes(&self, bytes: usize) {
        self.budget.output_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Checks that the export is within its budget.
    ///
    /// # Errors
    /// [`Error`], for the limit that is exceeded.
    pub(crate) fn check(&self) -> Result<()> {
        if self.budget.components.load(Ordering::Relaxed) > MAX_COMPONENTS {
            return Err(Error::TooManyComponents(MAX_COMPONENTS));
        }
        if self.budget.output_bytes.load(Ordering::Relaxed) > MAX_OUTPUT_BYTES {
            return Err(Error::OutputTooLarge(MAX_OUTPUT_BYTES));
        }
        Ok(())
    }
}
