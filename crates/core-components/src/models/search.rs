//! The search component (`search`, v1 to v3): a field that asks a servlet for hits below a page.

use std::sync::Arc;

use crate::component_context::{ComponentContext, ComponentResource, FullTextPageSearch};
use crate::component_core::{ComponentCore, component_model};
use crate::component_data::ComponentData;
use crate::link::{ComponentLink, RedirectPolicy};
use crate::list_item::{ComponentListItem, ItemDetails, ItemLinkForm};
use crate::model_registry::{ModelRequest, component_version};
use crate::model_value::{ModelMap, ModelValue};
use crate::site_structure;

/// Hits per answer.
const DEFAULT_RESULTS_SIZE: i64 = 10;
/// Letters after which the search begins.
const DEFAULT_MINIMUM_LENGTH: i64 = 3;

/// The model of a search field.
#[derive(Debug)]
pub(crate) struct SearchModel {
    core: ComponentCore,
}

/// Makes the model.
pub(crate) fn create(request: &ModelRequest) -> ModelValue {
    ModelValue::model(SearchModel { core: ComponentCore::new(request) })
}

/// Returns the hits of a search component as its servlet sends them: pages, for the words in the request's parameter
/// `fulltext`, from the number in `resultsOffset`; none for fewer letters than the policy asks for. `None` for another
/// component.
#[must_use]
pub fn search_results(
    context: &Arc<dyn ComponentContext>,
    resource: &ComponentResource,
) -> Option<ModelValue> {
    let model = SearchModel {
        core: ComponentCore::new(&ModelRequest::new(Arc::clone(context), resource.clone())),
    };
    if component_version(&**context, &model.core.resource_type(), "search", 0) == 0 {
        return None;
    }
    let parameter =
        |name: &str| context.request().parameter(name).map(|text| text.trim().to_owned());
    let text = parameter("fulltext").unwrap_or_default();
    let limit = usize::try_from(model.results_size()).unwrap_or_default();
    let minimum_length = usize::try_from(model.minimum_length()).unwrap_or_default();
    let pages = match model.root() {
        Some(root) if limit > 0 && !text.is_empty() && text.chars().count() >= minimum_length => {
            let offset = parameter("resultsOffset").and_then(|offset| offset.parse().ok());
            let offset = offset.unwrap_or_default();
            context.search_pages(&FullTextPageSearch { root, text, offset, limit: Some(limit) })
        }
        _ => Vec::new(),
    };
    Some(ModelValue::list(pages.iter().map(|page| model.hit(page))))
}

impl SearchModel {
    /// Returns a page that was found.
    fn hit(&self, page: &str) -> ModelValue {
        let context = self.core.context();
        let link = ComponentLink::to_page(context, page, RedirectPolicy::Follow);
        let item = ComponentListItem::of_page(&self.core, page, page, link, ItemLinkForm::Url);
        let details = ItemDetails { path: Some(page.to_owned()), ..ItemDetails::default() };
        ComponentListItem { details, ..item }.into()
    }

    fn number(&self, name: &str, default: i64) -> i64 {
        self.core.policy_value(name).and_then(|value| value.to_long()).unwrap_or(default)
    }

    fn results_size(&self) -> i64 {
        self.number("resultsSize", DEFAULT_RESULTS_SIZE)
    }

    fn minimum_length(&self) -> i64 {
        self.number("searchTermMinimumLength", DEFAULT_MINIMUM_LENGTH)
    }

    /// Returns the path of the component below the page that contains it.
    fn relative_path(&self) -> Option<String> {
        let page = self.core.pages().containing_page(self.core.path())?;
        self.core.path().strip_prefix(page.as_str()).map(str::to_owned)
    }

    fn root(&self) -> Option<String> {
        let page = self.core.current_page()?;
        let root =
            self.core.filled_text("searchRoot").or_else(|| self.core.policy_text("searchRoot"));
        match root {
            Some(root) if self.core.pages().is_page(&root) => {
                Some(site_structure::local_root(self.core.context(), &root, &page))
            }
            _ => Some(page),
        }
    }

    fn placeholder(&self) -> Option<Arc<str>> {
        self.core.text("placeholder")
    }

    fn data(&self) -> Option<ComponentData> {
        self.core.data()
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert("resultsSize", self.results_size());
        map.insert("searchTermMinimumLength", self.minimum_length());
        map.insert_present("relativePath", self.relative_path());
        map.insert_present("searchRootPagePath", self.root());
        self.core.export_end(&mut map, self.data());
        map
    }
}

component_model!(SearchModel {
    "resultsSize" => results_size,
    "searchTermMinimumLength" => minimum_length,
    "relativePath" => relative_path,
    "searchRootPagePath" => root,
    "placeholder" => placeholder,
    "data" => data,
});
