//! Small components: the progress bar, the PDF viewer, sharing, and progressive web apps.

use std::sync::Arc;

use crate::component_core::{ComponentCore, component_model};
use crate::component_data::ComponentData;
use crate::link::{ComponentLink, RedirectPolicy};
use crate::model_registry::ModelRequest;
use crate::model_value::{ComponentModel, ModelMap, ModelValue};
use crate::page_reader::{node_name, path_at_level};

/// The configuration of the PDF viewer.
const PDF_CONFIGURATION: &str =
    "com.adobe.cq.wcm.core.components.internal.services.pdfviewer.PdfViewerCaConfig";

/// The settings of the viewer in each way to show it, with the properties they come from.
const FULL_WINDOW_SETTINGS: &[(&str, &str)] = &[
    ("showAnnotationTools", "showAnnotationTools"),
    ("showLeftHandPanel", "showLeftHandPanel"),
    ("showPageControls", "showPageControls"),
    ("dockPageControls", "dockPageControls"),
    ("showDownloadPDF", "showDownloadPdf"),
    ("showPrintPDF", "showPrintPdf"),
];
const SIZED_CONTAINER_SETTINGS: &[(&str, &str)] = &[
    ("showFullScreen", "showFullScreen"),
    ("showPageControls", "showPageControls"),
    ("dockPageControls", "dockPageControls"),
    ("showDownloadPDF", "showDownloadPdf"),
    ("showPrintPDF", "showPrintPdf"),
];
const IN_LINE_SETTINGS: &[(&str, &str)] =
    &[("showDownloadPDF", "showDownloadPdf"), ("showPrintPDF", "showPrintPdf")];

/// The model of a progress bar.
#[derive(Debug)]
pub(crate) struct ProgressBarModel {
    core: ComponentCore,
}

/// The model of a PDF viewer.
#[derive(Debug)]
pub(crate) struct PdfViewerModel {
    core: ComponentCore,
}

/// The model of what a page tells social media.
#[derive(Debug)]
pub(crate) struct SocialMediaModel {
    core: ComponentCore,
}

/// The model of a progressive web app. Pages are none.
#[derive(Debug)]
pub(crate) struct ProgressiveWebAppModel;

/// Makes the model of a progress bar.
pub(crate) fn create_progress_bar(request: &ModelRequest) -> ModelValue {
    ModelValue::model(ProgressBarModel { core: ComponentCore::new(request) })
}

/// Makes the model of a PDF viewer.
pub(crate) fn create_pdf_viewer(request: &ModelRequest) -> ModelValue {
    ModelValue::model(PdfViewerModel { core: ComponentCore::new(request) })
}

/// Makes the model of what a page tells social media.
pub(crate) fn create_social_media(request: &ModelRequest) -> ModelValue {
    ModelValue::model(SocialMediaModel { core: ComponentCore::new(request) })
}

/// Makes the model of a progressive web app.
pub(crate) fn create_web_app(_: &ModelRequest) -> ModelValue {
    ModelValue::model(ProgressiveWebAppModel)
}

impl ProgressBarModel {
    fn completed(&self) -> f64 {
        let completed = self.core.value("completed").and_then(|value| value.to_double());
        completed.filter(|completed| completed.is_finite()).unwrap_or(0.0).clamp(0.0, 100.0)
    }

    fn remaining(&self) -> f64 {
        100.0 - self.completed()
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert("completed", self.completed());
        map.insert("remaining", self.remaining());
        self.core.export_end(&mut map, self.core.data());
        map
    }
}

impl PdfViewerModel {
    fn document(&self) -> Option<Arc<str>> {
        self.core.filled_text("documentPath")
    }

    /// Returns the address of the document.
    fn document_path(&self) -> Option<String> {
        ComponentLink::to(self.core.context(), &self.document()?, RedirectPolicy::Keep).url
    }

    fn file_name(&self) -> Option<String> {
        Some(node_name(&self.document()?).to_owned())
    }

    fn configuration(&self, name: &str) -> Option<Arc<str>> {
        let context = self.core.context();
        let node = context.configuration(self.core.path(), PDF_CONFIGURATION)?;
        context.property(&node, name)?.to_text().filter(|text| !text.is_empty())
    }

    fn client_id(&self) -> Option<Arc<str>> {
        self.configuration("clientId")
    }

    fn report_suite_id(&self) -> Option<Arc<str>> {
        self.configuration("reportSuiteId")
    }

    fn kind(&self) -> Option<Arc<str>> {
        self.core.filled_text("type")
    }

    fn container_class(&self) -> Option<&'static str> {
        match self.kind().as_deref() {
            Some("FULL_WINDOW") if self.core.is_set("borderless") => {
                Some("cmp-pdfviewer__full-window-borderless")
            }
            Some("FULL_WINDOW") => Some("cmp-pdfviewer__full-window"),
            Some("SIZED_CONTAINER") => Some("cmp-pdfviewer__sized-container"),
            Some("IN_LINE") => Some("cmp-pdfviewer__in-line"),
            _ => None,
        }
    }

    fn viewer_settings(&self) -> String {
        let mut map = ModelMap::new();
        let kind = self.kind();
        map.insert_present("embedMode", kind.clone());
        let settings = match kind.as_deref() {
            Some("FULL_WINDOW") => {
                map.insert_present("defaultViewMode", self.core.text("defaultViewMode"));
                FULL_WINDOW_SETTINGS
            }
            Some("SIZED_CONTAINER") => SIZED_CONTAINER_SETTINGS,
            Some("IN_LINE") => IN_LINE_SETTINGS,
            _ => &[],
        };
        for (name, property) in settings {
            map.insert(*name, self.core.is_set(property));
        }
        ModelValue::from(map).to_json().to_string()
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert_present("documentPath", self.document_path());
        map.insert_present("documentFileName", self.file_name());
        map.insert_present("clientId", self.client_id());
        map.insert_present("reportSuiteId", self.report_suite_id());
        map.insert_present("type", self.kind());
        map.insert_present("containerClass", self.container_class());
        map.insert("viewerConfigJson", self.viewer_settings());
        self.core.export_end(&mut map, self.core.data());
        map
    }
}

impl SocialMediaModel {
    fn page(&self) -> Option<String> {
        self.core.current_page()
    }

    /// Returns whether the page switches a network on, in its property `socialMedia`.
    fn is_enabled(&self, network: &str) -> bool {
        let networks = self.page().and_then(|page| self.core.pages().value(&page, "socialMedia"));
        networks
            .map(|value| value.to_texts())
            .unwrap_or_default()
            .iter()
            .any(|name| &**name == network)
    }

    fn is_facebook_enabled(&self) -> bool {
        self.is_enabled("facebook")
    }

    fn is_pinterest_enabled(&self) -> bool {
        self.is_enabled("pinterest")
    }

    fn is_social_media_enabled(&self) -> bool {
        self.is_facebook_enabled() || self.is_pinterest_enabled()
    }

    /// Returns whether the page has the component that shares it.
    fn has_sharing_component(&self) -> bool {
        let Some(page) = self.page() else { return false };
        self.contains_sharing(&format!("{page}/jcr:content"), 0)
    }

    fn contains_sharing(&self, path: &str, depth: usize) -> bool {
        const DEPTH_LIMIT: usize = 32;
        let context = self.core.context();
        let is_sharing = context
            .property(path, "sling:resourceType")
            .and_then(|value| value.to_text())
            .is_some_and(|resource_type| {
                crate::model_registry::type_chain(context, &resource_type)
                    .iter()
                    .any(|name| name.starts_with("core/wcm/components/sharing"))
            });
        is_sharing
            || (depth < DEPTH_LIMIT
                && context
                    .child_names(path)
                    .iter()
                    .any(|name| self.contains_sharing(&format!("{path}/{name}"), depth + 1)))
    }

    fn has_facebook_sharing(&self) -> bool {
        self.is_facebook_enabled() && self.has_sharing_component()
    }

    fn has_pinterest_sharing(&self) -> bool {
        self.is_pinterest_enabled() && self.has_sharing_component()
    }

    /// Returns the Open Graph fields of the page, with their names as `keySet`.
    fn metadata(&self) -> ModelMap {
        let mut map = ModelMap::new();
        let Some(page) = self.page().filter(|_| self.is_social_media_enabled()) else {
            map.insert("keySet", Vec::new());
            return map;
        };
        let (context, pages) = (self.core.context(), self.core.pages());
        let address = |path: &str| {
            let link = ComponentLink::to(context, path, RedirectPolicy::Keep);
            link.external_url().map(str::to_owned)
        };
        let title = pages.text(&page, "pageTitle").or_else(|| pages.text(&page, "jcr:title"));
        map.insert("og:title", title.unwrap_or_else(|| node_name(&page).into()));
        map.insert_present("og:url", address(&page));
        map.insert("og:type", "website");
        let site = path_at_level(&page, 1).and_then(|site| pages.text(site, "jcr:title"));
        map.insert_present("og:site_name", site);
        map.insert_present("og:image", self.image_reference(&page).and_then(|path| address(&path)));
        map.insert_present("og:description", pages.text(&page, "jcr:description"));
        let names = ModelValue::texts(map.iter().map(|(name, _)| name.to_owned()));
        map.insert("keySet", names);
        map
    }

    /// Returns the path of the page's picture.
    fn image_reference(&self, page: &str) -> Option<Arc<str>> {
        ["cq:featuredimage", "image"].into_iter().find_map(|name| {
            let node = format!("{page}/jcr:content/{name}");
            self.core.context().property(&node, "fileReference")?.to_text()
        })
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        self.core.export_end(&mut map, None);
        map
    }
}

impl ComponentModel for ProgressiveWebAppModel {
    fn property(&self, name: &str) -> Option<ModelValue> {
        Some(match name {
            "enabled" => false.into(),
            "manifestPath"
            | "serviceWorkerPath"
            | "themeColor"
            | "iconPath"
            | "projectSiteRootPath" => ModelValue::Null,
            _ => return None,
        })
    }

    fn property_names(&self) -> Vec<&'static str> {
        vec![
            "enabled",
            "manifestPath",
            "serviceWorkerPath",
            "themeColor",
            "iconPath",
            "projectSiteRootPath",
        ]
    }

    fn export(&self) -> ModelMap {
        ModelMap::new()
    }
}

impl ProgressBarModel {
    fn data(&self) -> Option<ComponentData> {
        self.core.data()
    }
}

component_model!(ProgressBarModel {
    "completed" => completed,
    "remaining" => remaining,
    "data" => data,
});

component_model!(PdfViewerModel {
    "documentPath" => document_path,
    "documentFileName" => file_name,
    "clientId" => client_id,
    "reportSuiteId" => report_suite_id,
    "type" => kind,
    "containerClass" => container_class,
    "viewerConfigJson" => viewer_settings,
});

component_model!(SocialMediaModel {
    "facebookEnabled" => is_facebook_enabled,
    "pinterestEnabled" => is_pinterest_enabled,
    "socialMediaEnabled" => is_social_media_enabled,
    "hasFacebookSharing" => has_facebook_sharing,
    "hasPinterestSharing" => has_pinterest_sharing,
    "metadata" => metadata,
});
