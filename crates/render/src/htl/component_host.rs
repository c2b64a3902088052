//! One component while its HTL script runs.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use tympan_content::JCR_CONTENT;
use tympan_core_components::{AuthoringMode, ComponentResource};
use tympan_htl::{HtlBudget, HtlValue};
use tympan_use_script::{UseScriptLimits, UseScriptRealm};

use super::authoring_finding::AuthoringFindings;
use super::component_globals::ComponentGlobals;
use super::model_context::SiteModelContext;
use super::site_access::SiteAccess;
use super::use_script_host::SiteUseScriptHost;
use crate::dependency::content_reader::RequestFacts;
use crate::page::template_structure::TemplateStructure;
use crate::resource::ContentResource;
use crate::template::{ComponentFrame, RenderScope};

/// The host of one component's scripts.
pub(super) struct HtlComponentHost {
    pub access: SiteAccess,
    pub frame: ComponentFrame,
    /// The resource as models take it.
    pub model_resource: ComponentResource,
    pub mode: AuthoringMode,
    pub budget: HtlBudget,
    findings: AuthoringFindings,
    pub globals: HashMap<String, HtlValue>,
    pub language: OnceLock<String>,
    /// The engine of the component's JavaScripts, once one is used.
    realm: Option<UseScriptRealm>,
}

impl HtlComponentHost {
    /// Creates the host of a component.
    pub(super) fn new(
        scope: Arc<RenderScope>,
        resource: ContentResource,
        selectors: Arc<[String]>,
        budget: HtlBudget,
    ) -> Self {
        scope.reader.record_fact(RequestFacts::EDIT);
        let inclusion = resource.inclusion();
        let is_edited = scope.request.is_edit_mode && !inclusion.is_editing_disabled;
        let mode = if is_edited { AuthoringMode::Edit } else { AuthoringMode::Disabled };
        let structure = structure_of(&scope, &resource);
        let context = SiteModelContext::new(Arc::clone(&scope), &selectors, structure, mode);
        let model_resource = inclusion.model_resource.clone().unwrap_or_else(|| {
            let own = ComponentResource::new(resource.path().as_str());
            match resource.forced_type() {
                Some(forced_type) => own.with_type(forced_type),
                None => own,
            }
        });
        let access = SiteAccess { scope: Arc::clone(&scope), context: Arc::new(context) };
        Self {
            access,
            frame: ComponentFrame::new(scope, resource, selectors),
            model_resource,
            mode,
            budget,
            findings: AuthoringFindings::default(),
            globals: HashMap::new(),
            language: OnceLock::new(),
            realm: None,
        }
    }

    /// Returns what the variables of the component are made from.
    pub(super) fn component_globals(&self) -> ComponentGlobals {
        ComponentGlobals {
            access: self.access.clone(),
            model_resource: self.model_resource.clone(),
            resource_path: self.frame.resource.path().as_str().into(),
            selectors: Arc::clone(&self.frame.selectors),
            mode: self.mode,
        }
    }

    /// Returns the engine of the component's JavaScripts, and starts it at the first call.
    pub(super) fn use_script_realm(&mut self) -> tympan_use_script::Result<UseScriptRealm> {
        if let Some(realm) = &self.realm {
            return Ok(realm.clone());
        }
        let host = SiteUseScriptHost::new(self.component_globals(), self.frame.resource.clone());
        let limits = UseScriptLimits::default();
        let realm = UseScriptRealm::new(Rc::new(host), self.budget.clone(), limits)?;
        self.realm = Some(realm.clone());
        Ok(realm)
    }

    /// Counts the steps so far, before other components of the page are rendered.
    pub(super) fn count_steps(&self) {
        self.access.scope.raise_step_count(self.budget.steps_taken());
    }

    /// Appends the findings for authors.
    pub(super) fn write_findings(&self, out: &mut Vec<u8>) {
        self.findings.write(out);
    }

    /// Adds a finding for authors.
    pub(super) fn add_finding(&mut self, script: &str, text: &str, message: &str) {
        self.findings.add(&self.access.scope, script, text, message);
    }
}

/// Finds the editable template in whose structure a resource lies.
pub(super) fn structure_of(
    scope: &RenderScope,
    resource: &ContentResource,
) -> Option<Arc<TemplateStructure>> {
    if resource.path().name() == JCR_CONTENT
        && let Some(content) = resource.node()
    {
        return TemplateStructure::of_page_content(&scope.reader, content);
    }
    if let Some(structure) = &resource.inclusion().structure {
        return Some(Arc::clone(structure));
    }
    let page = scope.requested_page()?;
    let content = scope.reader.child_existence(page, JCR_CONTENT)?;
    TemplateStructure::of_page_content(&scope.reader, &content)
}
