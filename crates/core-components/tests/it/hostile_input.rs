//! Any content gives models: no value of a property makes one panic.

use proptest::prelude::*;
use tympan_core_components::{
    ComponentResource, ContentDate, ContentValue, ModelRequest, ModelValue, find_model,
    model_class_names,
};

use crate::memory_context::{MemoryContext, shared};

/// Properties that models parse.
const PROPERTIES: [&str; 30] = [
    "id",
    "type",
    "linkURL",
    "linkTarget",
    "fileReference",
    "imageMap",
    "imageFromPageImage",
    "url",
    "html",
    "text",
    "listFrom",
    "parentPage",
    "childDepth",
    "maxItems",
    "orderBy",
    "structureDepth",
    "structureStart",
    "navigationRoot",
    "startLevel",
    "completed",
    "fragmentPath",
    "paragraphRange",
    "fragmentVariationPath",
    "expandedItems",
    "activeItem",
    "cq:styleIds",
    "jcr:lastModified",
    "documentPath",
    "youtubeVideoId",
    "rows",
];

/// Values that are more likely to be understood than random ones.
const WORDS: [&str; 14] = [
    "/content/site/en",
    "/content/site/en/jcr:content",
    "/urn:aaid:aem:1/é.png",
    "static",
    "url",
    "[rect(1,2)\"/a\"|\"\"|\"\"|(1)][",
    "1;3-*;-",
    "é-9999999999999999999",
    "//",
    "#é?",
    "https://www.pinterest.com/pin/é",
    "https://é.youtube.com/watch",
    "../..",
    "<p>é</p></p><h1",
];

fn value() -> impl Strategy<Value = ContentValue> {
    let single = prop_oneof![
        "\\PC{0,12}".prop_map(ContentValue::text),
        prop::sample::select(WORDS.as_slice()).prop_map(ContentValue::text),
        any::<i64>().prop_map(ContentValue::Long),
        any::<f64>().prop_map(ContentValue::Double),
        any::<bool>().prop_map(ContentValue::Boolean),
        any::<i64>()
            .prop_map(|epoch_ms| ContentValue::Date(ContentDate { epoch_ms, offset_minutes: 0 })),
    ];
    prop_oneof![
        4 => single.clone(),
        1 => prop::collection::vec(single, 0..3).prop_map(|values| ContentValue::List(values.into())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_properties_give_models(
        properties in prop::collection::vec((prop::sample::select(PROPERTIES.as_slice()), value()), 0..8),
    ) {
        let mut context = MemoryContext::default();
        let page = ContentValue::Name("cq:Page".into());
        context.set("/content/site/en", "jcr:primaryType", page);
        context.enable_data_layer();
        let path = "/content/site/en/jcr:content/it";
        let policy = "/conf/test-policies/it".to_owned();
        context.policies.insert("x".to_owned(), policy.clone());
        context.set(path, "sling:resourceType", ContentValue::text("x"));
        for (name, value) in properties {
            context.set(path, name, value.clone());
            context.set(&policy, name, value.clone());
            context.set("/content/site/en/jcr:content", name, value);
        }
        let context = shared(context);
        for class in model_class_names() {
            let request = ModelRequest::new(context.clone(), ComponentResource::new(path));
            let ModelValue::Model(model) = find_model(class).unwrap()(&request) else {
                panic!("`{class}` gives no model")
            };
            for name in model.property_names() {
                prop_assert!(model.property(name).is_some(), "{class}: {name}");
            }
            prop_assert!(ModelValue::Model(model).to_json().is_object());
        }
    }
}
