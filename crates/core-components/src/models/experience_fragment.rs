//! The experience fragment component (`experiencefragment`, v1 and v2): a part of a page that several pages show.

use crate::child_components::export_fragment;
use crate::component_core::{ComponentCore, component_model};
use crate::component_data::ComponentData;
use crate::model_registry::ModelRequest;
use crate::model_value::{ModelMap, ModelValue};
use crate::page_reader::{node_name, parent_path};
use crate::site_structure;

/// The folder of experience fragments.
const FRAGMENT_ROOT: &str = "/content/experience-fragments";

/// The class of the element in JSON.
const CLASS_NAMES: &str = "aem-xf";

/// The model of an experience fragment in a page.
#[derive(Debug)]
pub(crate) struct ExperienceFragmentModel {
    core: ComponentCore,
}

/// Makes the model.
pub(crate) fn create(request: &ModelRequest) -> ModelValue {
    ModelValue::model(ExperienceFragmentModel { core: ComponentCore::new(request) })
}

impl ExperienceFragmentModel {
    /// Returns the path of the variation's page.
    fn variation(&self) -> Option<String> {
        let path = self.core.filled_text("fragmentVariationPath")?;
        let path = path.trim_end_matches("/jcr:content").to_owned();
        let is_template = self.core.path().contains("/structure/jcr:content")
            || self.core.path().starts_with("/conf/");
        let local = self.core.current_page().filter(|_| is_template);
        Some(local.and_then(|page| self.local_variation(&path, &page)).unwrap_or(path))
    }

    /// Returns the variation for the language, or the live copy, that the current page is in.
    fn local_variation(&self, variation: &str, page: &str) -> Option<String> {
        let context = self.core.context();
        let exists = |path: &String| context.node_exists(&format!("{path}/jcr:content"));
        let page_root = site_structure::language_root(context, page);
        let fragment_root = site_structure::language_root(context, variation)
            .or_else(|| language_folder(variation));
        if let (Some(page_root), Some(fragment_root)) = (page_root, fragment_root) {
            let site = page_root.strip_prefix("/content")?;
            let rest = variation.strip_prefix(fragment_root.as_str())?;
            let local = format!("{FRAGMENT_ROOT}{site}{rest}");
            if exists(&local) {
                return Some(local);
            }
        }
        let site = page.strip_prefix("/content").unwrap_or_default();
        context.live_copies(variation).into_iter().find(|copy| {
            let inside = copy.strip_prefix(FRAGMENT_ROOT).unwrap_or_default();
            let shared = inside.split('/').zip(site.split('/')).take_while(|(a, b)| a == b).count();
            shared > 1 && exists(copy)
        })
    }

    /// Returns the path of the content to include.
    fn content_path(&self) -> Option<String> {
        let content = format!("{}/jcr:content", self.variation()?);
        self.core.context().node_exists(&content).then_some(content)
    }

    fn is_configured(&self) -> bool {
        self.content_path().is_some()
    }

    /// Returns the name of the fragment, which is above its variations.
    fn name(&self) -> Option<String> {
        let variation = self.variation()?;
        let name = node_name(parent_path(&variation));
        (!name.is_empty()).then(|| name.to_owned())
    }

    fn class_names(&self) -> &'static str {
        CLASS_NAMES
    }

    fn data(&self) -> Option<ComponentData> {
        self.core.data()
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert("configured", self.is_configured());
        map.insert_present("localizedFragmentVariationPath", self.content_path());
        map.insert("classNames", self.class_names());
        export_fragment(&self.core, self.content_path().as_deref(), &mut map);
        self.core.export_end(&mut map, self.data());
        map
    }
}

/// Returns the part of a path up to a folder with the name of a language; folders of fragments are not pages.
fn language_folder(path: &str) -> Option<String> {
    let mut folder = parent_path(path);
    while folder.len() > FRAGMENT_ROOT.len() {
        if site_structure::is_language_name(node_name(folder)) {
            return Some(folder.to_owned());
        }
        folder = parent_path(folder);
    }
    None
}

component_model!(ExperienceFragmentModel {
    "localizedFragmentVariationPath" => content_path,
    "configured" => is_configured,
    "name" => name,
    "classNames" => class_names,
    "data" => data,
});
