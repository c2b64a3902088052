//! What the scripts of the Core Components (content package 2.29.0 and examples 2.26.0) ask of model classes.

use std::sync::Arc;

use tympan_core_components::{
    ComponentContext, ComponentResource, ContentValue, ModelRequest, ModelValue, find_model,
    model_class_names,
};

use crate::memory_context::{MemoryContext, shared};

/// Each class that a script names in `data-sly-use`, and the properties that the scripts read of it. The classes of
/// dialogs (`commons.editor`) are rows of docs/compat/core-components.md.
const SCRIPTS_ASK: &[(&str, &str)] = &[
    (
        "com.adobe.cq.wcm.core.components.models.Accordion",
        "children data expandedItems headingElement id items singleExpansion",
    ),
    ("com.adobe.cq.wcm.core.components.models.Breadcrumb", "data id items"),
    (
        "com.adobe.cq.wcm.core.components.models.Button",
        "accessibilityLabel buttonLink data icon id link text",
    ),
    (
        "com.adobe.cq.wcm.core.components.models.Carousel",
        "accessibilityAutoItemTitles accessibilityLabel accessibilityNext accessibilityPause accessibilityPlay accessibilityPrevious accessibilityTablist activeItem autopauseDisabled autoplay children controlsPrepended data delay id items",
    ),
    (
        "com.adobe.cq.wcm.core.components.models.ClientLibraries",
        "cssIncludes jsAndCssIncludes jsIncludes",
    ),
    ("com.adobe.cq.wcm.core.components.models.Component", "id"),
    (
        "com.adobe.cq.wcm.core.components.models.Download",
        "actionText description displayFilename displayFormat displaySize filename format hideTitleLink id size title titleType url",
    ),
    ("com.adobe.cq.wcm.core.components.models.Embed", "data embeddableResourceType html id result"),
    (
        "com.adobe.cq.wcm.core.components.models.ExperienceFragment",
        "configured id localizedFragmentVariationPath name",
    ),
    (
        "com.adobe.cq.wcm.core.components.models.Image",
        "alt areas data displayPopupTitle dmImage fileReference height id imageLink json lazyEnabled lazyThreshold link sizes smartCropRendition src srcUriTemplate srcset title uuid width widths",
    ),
    (
        "com.adobe.cq.wcm.core.components.models.LanguageNavigation",
        "accessibilityLabel data id items",
    ),
    (
        "com.adobe.cq.wcm.core.components.models.LayoutContainer",
        "accessibilityLabel backgroundStyle children id items layout roleAttribute",
    ),
    (
        "com.adobe.cq.wcm.core.components.models.List",
        "data dateFormatString displayItemAsTeaser id items linkItems listItems showDescription showModificationDate",
    ),
    ("com.adobe.cq.wcm.core.components.models.Navigation", "accessibilityLabel data id items"),
    (
        "com.adobe.cq.wcm.core.components.models.PWA",
        "enabled iconPath manifestPath serviceWorkerPath themeColor",
    ),
    (
        "com.adobe.cq.wcm.core.components.models.Page",
        "alternateLanguageLinks appResourcesPath brandSlug canonicalLink clientLibCategories clientLibCategoriesJsBody clientLibCategoriesJsHead cssClassNames data dataLayerClientlibIncluded dataLayerName description designPath favicons hasCloudconfigSupport htmlPageItems id isClientlibsAsync keywords language mainContentSelector redirectTarget robotsTags staticDesignPath templateName title",
    ),
    (
        "com.adobe.cq.wcm.core.components.models.PdfViewer",
        "clientId containerClass data documentFileName documentPath id reportSuiteId viewerConfigJson",
    ),
    ("com.adobe.cq.wcm.core.components.models.ProgressBar", "completed data id remaining"),
    (
        "com.adobe.cq.wcm.core.components.models.Search",
        "id relativePath resultsSize searchTermMinimumLength",
    ),
    ("com.adobe.cq.wcm.core.components.models.Separator", "decorative"),
    (
        "com.adobe.cq.wcm.core.components.models.SocialMediaHelper",
        "facebookEnabled hasFacebookSharing hasPinterestSharing metadata pinterestEnabled socialMediaEnabled",
    ),
    (
        "com.adobe.cq.wcm.core.components.models.TableOfContents",
        "ignoreClasses includeClasses listType startLevel stopLevel",
    ),
    (
        "com.adobe.cq.wcm.core.components.models.Tabs",
        "accessibilityLabel activeItem children data id items",
    ),
    (
        "com.adobe.cq.wcm.core.components.models.Teaser",
        "actions actionsEnabled data description id imageLinkHidden imageResource link linkURL pretitle title titleLinkHidden titleType",
    ),
    ("com.adobe.cq.wcm.core.components.models.Text", "data isRichText text"),
    (
        "com.adobe.cq.wcm.core.components.models.Title",
        "data id link linkDisabled linkURL text type",
    ),
    (
        "com.adobe.cq.wcm.core.components.models.contentfragment.ContentFragment",
        "data description editorJSON elements gridResourceType id name paragraphs title type",
    ),
    ("com.adobe.cq.wcm.core.components.models.contentfragment.ContentFragmentList", "id listItems"),
    (
        "com.adobe.cq.wcm.core.components.models.embeddable.YouTube",
        "accessibilityLabel data empty iFrameAspectRatio iFrameHeight iFrameSrc iFrameWidth layout",
    ),
    ("com.adobe.cq.wcm.core.components.models.form.Button", "id name title type value"),
    (
        "com.adobe.cq.wcm.core.components.models.form.Container",
        "action enctype errorMessages id method name redirect resourceTypeForDropArea",
    ),
    ("com.adobe.cq.wcm.core.components.models.form.Field", "id name value"),
    (
        "com.adobe.cq.wcm.core.components.models.form.Options",
        "helpMessage id items name title type",
    ),
    (
        "com.adobe.cq.wcm.core.components.models.form.Text",
        "constraintMessage displayValidation helpMessage hideTitle id name placeholder readOnly required requiredMessage rows title type value",
    ),
    ("com.day.cq.wcm.foundation.AllowedComponentList", "components cssClass isApplicable title"),
    ("com.day.cq.wcm.foundation.TemplatedContainer", "structureResources"),
    ("com.day.cq.wcm.foundation.model.responsivegrid.ResponsiveGrid", "cssClass paragraphs"),
];

fn context() -> Arc<dyn ComponentContext> {
    let mut context = MemoryContext::default();
    context.set("/content/site/en/jcr:content", "jcr:title", ContentValue::text("Home"));
    let page = ContentValue::Name("cq:Page".into());
    context.set("/content/site/en", "jcr:primaryType", page);
    context.create("/content/site/en/jcr:content/root/component");
    context.enable_data_layer();
    shared(context)
}

#[test]
fn every_class_and_property_of_the_scripts_is_answered() {
    let context = context();
    let resource = ComponentResource::new("/content/site/en/jcr:content/root/component");
    for (class, properties) in SCRIPTS_ASK {
        let factory = find_model(class).unwrap_or_else(|| panic!("no model `{class}`"));
        let ModelValue::Model(model) =
            factory(&ModelRequest::new(context.clone(), resource.clone()))
        else {
            panic!("`{class}` gives no model")
        };
        for name in properties.split(' ') {
            assert!(model.property(name).is_some(), "`{class}` has no property `{name}`");
            assert!(
                model.property_names().contains(&name),
                "`{class}` does not list the property `{name}`"
            );
        }
        assert!(model.property("noSuchProperty").is_none(), "{class}");
    }
}

#[test]
fn every_listed_property_has_an_answer() {
    let context = context();
    let resource = ComponentResource::new("/content/site/en/jcr:content/root/component");
    for class in model_class_names() {
        let factory = find_model(class).unwrap();
        let model = factory(&ModelRequest::new(context.clone(), resource.clone()));
        let ModelValue::Model(model) = model else { panic!("`{class}` gives no model") };
        for name in model.property_names() {
            assert!(model.property(name).is_some(), "`{class}` lists `{name}` without an answer");
        }
    }
}

#[test]
fn missing_content_gives_models_without_values() {
    let context = shared(MemoryContext::default());
    for path in ["", "/", "relative", "/no/such/node", "/jcr:content", "/a//b/"] {
        for class in model_class_names() {
            let factory = find_model(class).unwrap();
            let model = factory(&ModelRequest::new(context.clone(), ComponentResource::new(path)));
            let ModelValue::Model(model) = &model else { panic!("`{class}` gives no model") };
            for name in model.property_names() {
                model.property(name);
            }
            model.export();
        }
    }
}
