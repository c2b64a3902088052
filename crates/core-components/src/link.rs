//! Links of components: the address of a page, an asset or an external site, with its attributes.

use std::sync::Arc;

use tympan_notation::has_harmless_scheme;

use crate::component_context::{ComponentContext, ComponentResource};
use crate::model_value::{ComponentModel, ModelMap, ModelValue};
use crate::page_reader::{PageReader, RedirectDestination, page_path_of_link};

/// Targets that a link writes; `_self` is what a browser does without a target.
const WRITTEN_TARGETS: [&str; 3] = ["_blank", "_parent", "_top"];

/// Names of the properties that describe a link.
pub(crate) const LINK_URL: &str = "linkURL";
const LINK_TARGET: &str = "linkTarget";
const LINK_ACCESSIBILITY_LABEL: &str = "linkAccessibilityLabel";
const LINK_TITLE_ATTRIBUTE: &str = "linkTitleAttribute";

/// The followed redirects of a linked page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedirectPolicy {
    /// A link to a page that redirects names the destination.
    Follow,
    /// A link names the page itself.
    Keep,
}

/// A link with its address and attributes. Without an address it is not valid.
#[derive(Clone, Debug, Default)]
pub(crate) struct ComponentLink {
    /// The address in markup, with the context path.
    pub(crate) url: Option<String>,
    /// The mapped path or address, without the context path.
    mapped: Option<String>,
    /// The address on the publish instance.
    external: Option<String>,
    /// The linked page, after redirects.
    pub(crate) page: Option<String>,
    /// Attributes apart from `href`.
    attributes: Vec<(&'static str, Arc<str>)>,
}

impl ComponentLink {
    /// Creates the link that the properties `linkURL`, `linkTarget`, `linkAccessibilityLabel` and `linkTitleAttribute` of
    /// a resource describe.
    pub(crate) fn of_resource(
        context: &dyn ComponentContext,
        resource: &ComponentResource,
        redirects: RedirectPolicy,
    ) -> ComponentLink {
        ComponentLink::of_property(context, resource, LINK_URL, redirects)
    }

    /// Creates a link from another property than `linkURL`.
    pub(crate) fn of_property(
        context: &dyn ComponentContext,
        resource: &ComponentResource,
        name: &str,
        redirects: RedirectPolicy,
    ) -> ComponentLink {
        let text = |name: &str| resource.property(context, name).and_then(|value| value.to_text());
        let url = text(name).unwrap_or_default();
        let mut link = ComponentLink::to(context, &url, redirects);
        if link.is_valid() {
            link.set_attributes(
                text(LINK_TARGET),
                text(LINK_ACCESSIBILITY_LABEL),
                text(LINK_TITLE_ATTRIBUTE),
            );
        }
        link
    }

    /// Creates a link to an address or a path.
    pub(crate) fn to(
        context: &dyn ComponentContext,
        url: &str,
        redirects: RedirectPolicy,
    ) -> ComponentLink {
        let url = url.trim();
        if url.is_empty() {
            return ComponentLink::default();
        }
        let reader = PageReader::new(context);
        let path = url.split(['?', '#']).next().unwrap_or(url);
        if url.starts_with('/') && reader.is_page(path) {
            let rest = url.get(path.len()..).unwrap_or_default();
            let mut link = ComponentLink::to_page(context, path, redirects);
            let addresses = [&mut link.url, &mut link.mapped, &mut link.external];
            for address in addresses.into_iter().flatten() {
                address.push_str(rest);
            }
            return link;
        }
        ComponentLink::to_address(context, url)
    }

    /// Creates a link to a page.
    pub(crate) fn to_page(
        context: &dyn ComponentContext,
        page: &str,
        redirects: RedirectPolicy,
    ) -> ComponentLink {
        let reader = PageReader::new(context);
        let page = match redirects {
            RedirectPolicy::Keep => page.to_owned(),
            RedirectPolicy::Follow => match reader.redirect_destination(page) {
                RedirectDestination::Page(page) => page,
                RedirectDestination::Address(address) => {
                    return ComponentLink::to_address(context, &address);
                }
            },
        };
        let path = reader.vanity_path(&page).unwrap_or_else(|| format!("{page}.html"));
        ComponentLink { page: Some(page), ..ComponentLink::to_path(context, &path) }
    }

    /// Creates a link to something that is not a page. A link with a scheme that may run code has no address.
    fn to_address(context: &dyn ComponentContext, address: &str) -> ComponentLink {
        if address.starts_with('/') && !address.starts_with("//") {
            let link = ComponentLink::to_path(context, address);
            let page = page_path_of_link(address);
            let page = PageReader::new(context).is_page(page).then(|| page.to_owned());
            return ComponentLink { page, ..link };
        }
        if !has_harmless_scheme(address) {
            return ComponentLink::default();
        }
        let address = address.replace(' ', "%20");
        ComponentLink {
            url: Some(address.clone()),
            mapped: Some(address.clone()),
            external: Some(address),
            ..ComponentLink::default()
        }
    }

    /// Creates a link to a path of the site.
    fn to_path(context: &dyn ComponentContext, path: &str) -> ComponentLink {
        let mapped = context.map_path(path);
        ComponentLink {
            url: Some(with_context_path(context, &mapped)),
            external: Some(context.external_url(&mapped)),
            mapped: Some(mapped),
            ..ComponentLink::default()
        }
    }

    /// Sets the attributes that have a value.
    pub(crate) fn set_attributes(
        &mut self,
        target: Option<Arc<str>>,
        label: Option<Arc<str>>,
        title: Option<Arc<str>>,
    ) {
        let target = target.filter(|target| WRITTEN_TARGETS.contains(&&**target));
        for (name, value) in [("target", target), ("aria-label", label), ("title", title)] {
            if let Some(value) = value.filter(|value| !value.trim().is_empty()) {
                self.attributes.push((name, value));
            }
        }
    }

    /// Removes the attributes.
    pub(crate) fn clear_attributes(&mut self) {
        self.attributes.clear();
    }

    /// Whether the link has an address.
    pub(crate) fn is_valid(&self) -> bool {
        self.url.is_some()
    }

    /// Returns the link, or nothing if it has no address.
    pub(crate) fn valid(self) -> Option<ComponentLink> {
        self.is_valid().then_some(self)
    }

    /// Returns the address on the publish instance.
    pub(crate) fn external_url(&self) -> Option<&str> {
        self.external.as_deref()
    }

    /// Returns the attributes apart from `href`.
    fn attribute_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        for (name, value) in &self.attributes {
            map.insert(*name, Arc::clone(value));
        }
        map
    }
}

/// Returns a mapped path with the context path; a complete address stays as it is.
pub(crate) fn with_context_path(context: &dyn ComponentContext, mapped: &str) -> String {
    if mapped.starts_with('/') {
        format!("{}{mapped}", context.request().context_path)
    } else {
        mapped.to_owned()
    }
}

impl From<ComponentLink> for ModelValue {
    fn from(link: ComponentLink) -> ModelValue {
        ModelValue::model(link)
    }
}

impl ComponentModel for ComponentLink {
    fn property(&self, name: &str) -> Option<ModelValue> {
        Some(match name {
            "valid" => self.is_valid().into(),
            "url" | "URL" => self.url.clone().into(),
            "mappedURL" => self.mapped.clone().into(),
            "externalizedURL" => self.external.clone().into(),
            "reference" => self.page.as_deref().map(|page| ModelValue::Page(page.into())).into(),
            "attributes" => self.attribute_map().into(),
            "htmlAttributes" => {
                let mut map = ModelMap::new();
                map.insert_present("href", self.url.clone());
                for (name, value) in &self.attributes {
                    map.insert(*name, Arc::clone(value));
                }
                map.into()
            }
            _ => return None,
        })
    }

    fn property_names(&self) -> Vec<&'static str> {
        vec![
            "valid",
            "url",
            "URL",
            "mappedURL",
            "externalizedURL",
            "reference",
            "attributes",
            "htmlAttributes",
        ]
    }

    fn export(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("valid", self.is_valid());
        map.insert_present("url", self.url.clone());
        let attributes = self.attribute_map();
        if !attributes.is_empty() {
            map.insert("attributes", attributes);
        }
        map
    }
}
