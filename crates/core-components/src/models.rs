//! The models, one module per component.

use crate::model_registry::ModelClass;

/// Every class that scripts can ask for.
pub(crate) const CLASSES: &[ModelClass] = &[];
