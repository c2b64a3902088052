//! The access of the objects of a component to content and the request.

use std::sync::Arc;

use tympan_core_components::ComponentContext;

use super::model_context::SiteModelContext;
use crate::template::RenderScope;

/// The access of the objects of one component to content and the request. Cloning is cheap.
#[derive(Debug, Clone)]
pub(super) struct SiteAccess {
    pub scope: Arc<RenderScope>,
    pub context: Arc<SiteModelContext>,
}

impl SiteAccess {
    /// Returns the context as models take it.
    pub(super) fn model_context(&self) -> Arc<dyn ComponentContext> {
        Arc::clone(&self.context) as Arc<dyn ComponentContext>
    }
}
