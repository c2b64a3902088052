//! Pages as scripts see them.

use std::sync::Arc;

use tympan_core_components::{ComponentContext, ComponentResource, ContentValue};
use tympan_htl::{HostError, HtlItems, HtlObject, HtlValue};

use super::content_conversion::{LocaleText, bean_property, htl_content_value};
use super::property_map::PropertyMapView;
use super::site_access::SiteAccess;
use super::site_object::ResourceView;
use crate::page;

/// A page, as `currentPage` in scripts.
#[derive(Debug)]
pub(super) struct PageView {
    access: SiteAccess,
    path: Arc<str>,
}

impl PageView {
    /// Creates the value of the page at a path; null if there is none.
    pub(super) fn value_at(access: &SiteAccess, path: &str) -> HtlValue {
        if access.context.is_page(path) {
            HtlValue::object(Self { access: access.clone(), path: path.into() })
        } else {
            HtlValue::Null
        }
    }

    /// Returns the path.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    fn content_path(&self) -> String {
        format!("{}/jcr:content", self.path)
    }

    fn content_value(&self, name: &str) -> Option<ContentValue> {
        self.access.context.property(&self.content_path(), name)
    }

    fn value(&self, name: &str) -> HtlValue {
        self.content_value(name).map_or(HtlValue::Null, |value| htl_content_value(&value))
    }

    fn text(&self, name: &str) -> Option<Arc<str>> {
        self.content_value(name)?.to_text().filter(|text| !text.is_empty())
    }

    fn flag(&self, name: &str) -> bool {
        self.content_value(name).and_then(|value| value.to_boolean()).unwrap_or(false)
    }

    fn child_pages(&self) -> Vec<HtlValue> {
        let names = self.access.context.child_names(&self.path).into_iter();
        let paths = names.map(|name| format!("{}/{name}", self.path));
        paths
            .map(|path| Self::value_at(&self.access, &path))
            .filter(|page| !page.is_null())
            .collect()
    }
}

impl HtlObject for PageView {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        let name_of_page = self.path.rsplit('/').next().unwrap_or_default();
        Ok(Some(match &*bean_property(name) {
            "path" => HtlValue::Text(Arc::clone(&self.path)),
            "name" => HtlValue::from(name_of_page),
            "title" => HtlValue::from(self.text("jcr:title")),
            "pageTitle" => HtlValue::from(self.text("pageTitle")),
            "navigationTitle" => HtlValue::from(self.text("navTitle")),
            "description" => HtlValue::from(self.text("jcr:description")),
            "hideInNav" => HtlValue::Boolean(self.flag("hideInNav")),
            "lastModified" => self.value("cq:lastModified"),
            "lastModifiedBy" => self.value("cq:lastModifiedBy"),
            "onTime" => self.value("onTime"),
            "offTime" => self.value("offTime"),
            "vanityUrl" => HtlValue::from(self.text("sling:vanityPath")),
            "valid" => HtlValue::Boolean(true),
            "locked" => HtlValue::Boolean(false),
            "depth" => HtlValue::Integer(self.path.matches('/').count() as i64),
            "language" | "locale" => {
                let node = self.access.scope.reader.node_existence_at(&self.path);
                let language =
                    node.map(|node| page::page_language(&self.access.scope.reader, &node));
                HtlValue::object(LocaleText(language.unwrap_or_default().into()))
            }
            "properties" | "valueMap" => HtlValue::object(PropertyMapView::of_resource(
                self.access.clone(),
                ComponentResource::new(self.content_path()),
            )),
            "contentResource" => ResourceView::value_at(&self.access, &self.content_path()),
            "parent" => {
                let parent = self.path.rsplit_once('/').map_or("", |(parent, _)| parent);
                Self::value_at(&self.access, parent)
            }
            "template" => match self.text("cq:template") {
                Some(template) => {
                    let title = self
                        .access
                        .context
                        .property(&format!("{template}/jcr:content"), "jcr:title");
                    HtlValue::map([
                        ("name", HtlValue::from(template.rsplit('/').next().unwrap_or_default())),
                        ("title", title.map_or(HtlValue::Null, |title| htl_content_value(&title))),
                        ("path", HtlValue::Text(template)),
                    ])
                }
                None => HtlValue::Null,
            },
            "tags" => {
                let tags =
                    self.content_value("cq:tags").map(|tags| tags.to_texts()).unwrap_or_default();
                HtlValue::list(tags.into_iter().map(HtlValue::Text))
            }
            "children" | "listChildren" => HtlValue::list(self.child_pages()),
            _ => return Ok(None),
        }))
    }

    fn call(&self, name: &str, arguments: &[HtlValue]) -> Result<Option<HtlValue>, HostError> {
        let level = match arguments {
            [] => return self.property(name),
            [HtlValue::Integer(level)] => usize::try_from(*level).ok(),
            // A filter of pages cannot be made in a script.
            [HtlValue::Null, ..] if name == "listChildren" => return self.property(name),
            _ => None,
        };
        let ends = self.path.match_indices('/').map(|(at, _)| at).skip(1).chain([self.path.len()]);
        let ancestors: Vec<&str> = ends.filter_map(|end| self.path.get(..end)).collect();
        let ancestor = level.and_then(|level| match name {
            "getAbsoluteParent" => ancestors.get(level),
            "getParent" => ancestors.iter().rev().nth(level),
            _ => None,
        });
        let is_known = matches!(name, "getAbsoluteParent" | "getParent");
        Ok(is_known
            .then(|| ancestor.map_or(HtlValue::Null, |path| Self::value_at(&self.access, path))))
    }

    fn items(&self) -> Result<Option<HtlItems>, HostError> {
        Ok(Some(Box::new(self.child_pages().into_iter().map(Ok))))
    }

    fn is_true(&self) -> bool {
        true
    }

    fn to_text(&self) -> String {
        self.path.to_string()
    }
}
