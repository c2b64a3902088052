//! The models, one module per component.

use crate::model_registry::ModelClass;

mod breadcrumb;
mod button;
mod container;
mod content_fragment;
mod document;
mod download;
mod embed;
mod experience_fragment;
mod form;
pub(crate) mod image;
mod list;
mod navigation;
mod page;
mod panel_container;
pub(crate) mod search;
mod separator;
mod table_of_contents;
mod teaser;
mod text;
mod title;

/// Every class that scripts can ask for.
pub(crate) const CLASSES: &[ModelClass] = &[
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.Title",
        exported_types: &["title"],
        factory: title::create,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.Text",
        exported_types: &["text"],
        factory: text::create,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.Separator",
        exported_types: &["separator"],
        factory: separator::create,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.Component",
        exported_types: &[],
        factory: separator::create_plain,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.Button",
        exported_types: &["button"],
        factory: button::create,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.TableOfContents",
        exported_types: &["tableofcontents"],
        factory: table_of_contents::create,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.Search",
        exported_types: &["search"],
        factory: search::create,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.Breadcrumb",
        exported_types: &["breadcrumb"],
        factory: breadcrumb::create,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.List",
        exported_types: &["list"],
        factory: list::create,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.Navigation",
        exported_types: &["navigation"],
        factory: navigation::create,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.LanguageNavigation",
        exported_types: &["languagenavigation"],
        factory: navigation::create_language,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.Accordion",
        exported_types: &["accordion"],
        factory: panel_container::create_accordion,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.Carousel",
        exported_types: &["carousel"],
        factory: panel_container::create_carousel,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.Tabs",
        exported_types: &["tabs"],
        factory: panel_container::create_tabs,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.LayoutContainer",
        exported_types: &["container"],
        factory: container::create_layout,
    },
    ModelClass {
        name: "com.day.cq.wcm.foundation.model.responsivegrid.ResponsiveGrid",
        exported_types: &["wcm/foundation/components/responsivegrid"],
        factory: container::create_grid,
    },
    ModelClass {
        name: "com.day.cq.wcm.foundation.TemplatedContainer",
        exported_types: &[],
        factory: container::create_templated,
    },
    ModelClass {
        name: "com.day.cq.wcm.foundation.AllowedComponentList",
        exported_types: &[],
        factory: container::create_allowed,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.Teaser",
        exported_types: &["teaser"],
        factory: teaser::create,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.form.Container",
        exported_types: &["form/container"],
        factory: form::create_container,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.form.Text",
        exported_types: &["form/text"],
        factory: form::create_text,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.form.Options",
        exported_types: &["form/options"],
        factory: form::create_options,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.form.Button",
        exported_types: &["form/button"],
        factory: form::create_button,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.form.Field",
        exported_types: &["form/hidden"],
        factory: form::create_hidden,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.Image",
        exported_types: &["image"],
        factory: image::create,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.Page",
        exported_types: &["page"],
        factory: page::create,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.ClientLibraries",
        exported_types: &[],
        factory: page::create_client_libraries,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.Download",
        exported_types: &["download"],
        factory: download::create,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.Embed",
        exported_types: &["embed"],
        factory: embed::create,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.embeddable.YouTube",
        exported_types: &["core/wcm/components/embed/v1/embed/embeddable/youtube"],
        factory: embed::create_youtube,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.ExperienceFragment",
        exported_types: &["experiencefragment"],
        factory: experience_fragment::create,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.contentfragment.ContentFragment",
        exported_types: &["contentfragment"],
        factory: content_fragment::create,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.contentfragment.ContentFragmentList",
        exported_types: &["contentfragmentlist"],
        factory: content_fragment::create_list,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.ProgressBar",
        exported_types: &["progressbar"],
        factory: document::create_progress_bar,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.PdfViewer",
        exported_types: &["pdfviewer"],
        factory: document::create_pdf_viewer,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.SocialMediaHelper",
        exported_types: &["sharing"],
        factory: document::create_social_media,
    },
    ModelClass {
        name: "com.adobe.cq.wcm.core.components.models.PWA",
        exported_types: &[],
        factory: document::create_web_app,
    },
];
