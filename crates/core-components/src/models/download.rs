//! The download component (`download`, v1 and v2): a file with a button.

use std::sync::Arc;

use crate::asset_reader::AssetReader;
use crate::component_core::{ComponentCore, component_model};
use crate::component_data::ComponentData;
use crate::content_value::ContentValue;
use crate::link::with_context_path;
use crate::model_registry::ModelRequest;
use crate::model_value::{ModelMap, ModelValue};
use crate::models::title::HEADING_ELEMENTS;
use crate::page_reader::node_name;

/// The selector of the servlet that sends files.
const DOWNLOAD_SELECTOR: &str = "coredownload";
/// The selector that lets a browser show the file.
const INLINE_SELECTOR: &str = "inline";

/// The model of a download.
#[derive(Debug)]
pub(crate) struct DownloadModel {
    core: ComponentCore,
}

/// The file of a download.
struct DownloadFile {
    /// The path that the servlet answers for.
    path: String,
    name: String,
    media_type: Option<Arc<str>>,
    size: Option<i64>,
}

/// Makes the model.
pub(crate) fn create(request: &ModelRequest) -> ModelValue {
    ModelValue::model(DownloadModel { core: ComponentCore::new(request) })
}

impl DownloadModel {
    fn asset(&self) -> Option<AssetReader<'_>> {
        AssetReader::find(self.core.context(), &self.core.filled_text("fileReference")?)
    }

    /// Returns the asset, or the file that was uploaded into the component.
    fn file(&self) -> Option<DownloadFile> {
        if let Some(asset) = self.asset() {
            return Some(DownloadFile {
                path: asset.path().to_owned(),
                name: node_name(asset.path()).to_owned(),
                media_type: asset.media_type(),
                size: asset.size(),
            });
        }
        let context = self.core.context();
        let path = format!("{}/file", self.core.path());
        let content = format!("{path}/jcr:content");
        let media_type =
            context.property(&content, "jcr:mimeType").and_then(|value| value.to_text());
        let size = match context.property(&content, "jcr:data") {
            Some(ContentValue::Binary(length)) => i64::try_from(length).ok(),
            _ => None,
        };
        let name = self.core.filled_text("fileName");
        context.node_exists(&content).then(|| DownloadFile {
            name: name.map_or_else(|| node_name(&path).to_owned(), |name| name.to_string()),
            path,
            media_type,
            size,
        })
    }

    fn file_name(&self) -> Option<String> {
        Some(self.file()?.name)
    }

    /// Returns the extension of the file name.
    fn extension(&self) -> Option<String> {
        let name = self.file()?.name;
        name.rsplit_once('.').map(|(_, extension)| extension.to_owned())
    }

    fn url(&self) -> Option<String> {
        let file = self.file()?;
        let context = self.core.context();
        let mut selectors = format!(".{DOWNLOAD_SELECTOR}");
        if self.core.is_set("inline") {
            selectors.push_str(&format!(".{INLINE_SELECTOR}"));
        }
        let extension = self.extension().map(|text| format!(".{text}")).unwrap_or_default();
        let path = context.map_path(&format!("{}{selectors}{extension}", file.path));
        Some(with_context_path(context, &path.replace(' ', "%20")))
    }

    fn format(&self) -> Option<Arc<str>> {
        self.file()?.media_type
    }

    fn size(&self) -> Option<String> {
        Some(display_size(self.file()?.size?))
    }

    fn title(&self) -> Option<Arc<str>> {
        if self.core.is_set("titleFromAsset")
            && let Some(asset) = self.asset()
        {
            return asset
                .metadata_text("dc:title")
                .or_else(|| Some(node_name(asset.path()).into()));
        }
        self.core.text("jcr:title")
    }

    fn description(&self) -> Option<Arc<str>> {
        if self.core.is_set("descriptionFromAsset")
            && let Some(asset) = self.asset()
        {
            return asset.metadata_text("dc:description");
        }
        self.core.text("jcr:description")
    }

    fn action_text(&self) -> Option<Arc<str>> {
        self.core.text("actionText")
    }

    fn heading(&self) -> Option<Arc<str>> {
        let element = self.core.value_or_policy("titleType")?.to_text()?;
        HEADING_ELEMENTS.contains(&&*element).then_some(element)
    }

    fn displays_size(&self) -> bool {
        self.core.is_policy_set("displaySize")
    }

    fn displays_format(&self) -> bool {
        self.core.is_policy_set("displayFormat")
    }

    fn displays_file_name(&self) -> bool {
        self.core.is_policy_set("displayFilename")
    }

    fn hides_title_link(&self) -> bool {
        self.core.is_policy_set("hideTitleLink")
    }

    fn data(&self) -> Option<ComponentData> {
        Some(ComponentData {
            title: self.title(),
            description: self.description(),
            link_url: self.url(),
            ..self.core.data()?
        })
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert_present("title", self.title());
        map.insert_present("titleType", self.heading());
        map.insert_present("description", self.description());
        map.insert_present("url", self.url());
        map.insert_present("filename", self.file_name());
        map.insert_present("format", self.format());
        map.insert_present("size", self.size());
        map.insert_present("extension", self.extension());
        map.insert_present("actionText", self.action_text());
        map.insert("displaySize", self.displays_size());
        map.insert("displayFormat", self.displays_format());
        map.insert("displayFilename", self.displays_file_name());
        map.insert("hideTitleLink", self.hides_title_link());
        self.core.export_end(&mut map, self.data());
        map
    }
}

/// Writes a number of bytes in the largest unit that it fills, cut to a whole number: `147 KB`.
fn display_size(bytes: i64) -> String {
    const UNITS: [(&str, u32); 5] = [("PB", 50), ("TB", 40), ("GB", 30), ("MB", 20), ("KB", 10)];
    UNITS.into_iter().find(|(_, shift)| bytes >> shift > 0).map_or_else(
        || format!("{bytes} bytes"),
        |(unit, shift)| format!("{} {unit}", bytes >> shift),
    )
}

component_model!(DownloadModel {
    "title" => title,
    "titleType" => heading,
    "description" => description,
    "url" => url,
    "filename" => file_name,
    "format" => format,
    "size" => size,
    "extension" => extension,
    "actionText" => action_text,
    "displaySize" => displays_size,
    "displayFormat" => displays_format,
    "displayFilename" => displays_file_name,
    "hideTitleLink" => hides_title_link,
    "data" => data,
});

#[cfg(test)]
mod tests {
    use super::display_size;

    #[test]
    fn sizes_are_cut_to_whole_units() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1 KB"),
            (151_000, "147 KB"),
            (5 * 1024 * 1024 - 1, "4 MB"),
            (1 << 30, "1 GB"),
        ] {
            assert_eq!(display_size(bytes), text);
        }
    }
}
