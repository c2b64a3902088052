//! The embed component (`embed`, v1 and v2): something from another site, and its YouTube player.

use std::sync::Arc;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::component_core::{ComponentCore, component_model};
use crate::component_data::ComponentData;
use crate::model_registry::ModelRequest;
use crate::model_value::{ModelMap, ModelValue};

/// A provider of oEmbed answers.
struct OembedProvider {
    name: &'static str,
    endpoint: &'static str,
    /// Beginnings of addresses, after the scheme; `*` stands for any letters but a slash.
    schemes: &'static [&'static str],
    /// Whether the HTML of answers has scripts, and is written as it is.
    is_unsafe: bool,
}

/// The providers that AEM has by default.
const PROVIDERS: [OembedProvider; 7] = [
    OembedProvider {
        name: "Facebook Post",
        endpoint: "https://www.facebook.com/plugins/post/oembed.json/",
        schemes: &[
            "www.facebook.com/*/posts/",
            "www.facebook.com/*/activity/",
            "www.facebook.com/photo",
            "www.facebook.com/permalink.php",
            "www.facebook.com/media/",
            "www.facebook.com/notes/",
        ],
        is_unsafe: true,
    },
    OembedProvider {
        name: "Facebook Video",
        endpoint: "https://www.facebook.com/plugins/video/oembed.json/",
        schemes: &["www.facebook.com/*/videos/", "www.facebook.com/video.php"],
        is_unsafe: true,
    },
    OembedProvider {
        name: "Flickr",
        endpoint: "https://www.flickr.com/services/oembed/",
        schemes: &[
            "www.flickr.com/photos/",
            "*.flickr.com/photos/",
            "flickr.com/photos/",
            "flic.kr/p/",
        ],
        is_unsafe: false,
    },
    OembedProvider {
        name: "Instagram",
        endpoint: "https://api.instagram.com/oembed/",
        schemes: &[
            "www.instagram.com/p/",
            "instagram.com/p/",
            "www.instagr.am/p/",
            "instagr.am/p/",
        ],
        is_unsafe: true,
    },
    OembedProvider {
        name: "SoundCloud",
        endpoint: "https://soundcloud.com/oembed",
        schemes: &["soundcloud.com/"],
        is_unsafe: false,
    },
    OembedProvider {
        name: "Twitter",
        endpoint: "https://publish.twitter.com/oembed",
        schemes: &["twitter.com/*/status/", "*.twitter.com/*/status/"],
        is_unsafe: true,
    },
    OembedProvider {
        name: "YouTube",
        endpoint: "https://www.youtube.com/oembed",
        schemes: &[
            "www.youtube.com/watch",
            "*.youtube.com/watch",
            "youtube.com/watch",
            "youtu.be/",
        ],
        is_unsafe: false,
    },
];

/// The model of something embedded.
#[derive(Debug)]
pub(crate) struct EmbedModel {
    core: ComponentCore,
}

/// The model of a YouTube player.
#[derive(Debug)]
pub(crate) struct YoutubeModel {
    core: ComponentCore,
}

/// Makes the model of something embedded.
pub(crate) fn create(request: &ModelRequest) -> ModelValue {
    ModelValue::model(EmbedModel { core: ComponentCore::new(request) })
}

/// Makes the model of a YouTube player.
pub(crate) fn create_youtube(request: &ModelRequest) -> ModelValue {
    ModelValue::model(YoutubeModel { core: ComponentCore::new(request) })
}

impl EmbedModel {
    fn kind_name(&self) -> Option<&'static str> {
        match self.core.text("type").as_deref() {
            Some("url") => Some("URL"),
            Some("html") => Some("HTML"),
            Some("embeddable") => Some("EMBEDDABLE"),
            _ => None,
        }
    }

    fn kind(&self) -> ModelValue {
        match self.kind_name() {
            Some("URL") => ModelValue::Constant { name: "URL", value: "url" },
            Some("HTML") => ModelValue::Constant { name: "HTML", value: "html" },
            Some(_) => ModelValue::Constant { name: "EMBEDDABLE", value: "embeddable" },
            None => ModelValue::Null,
        }
    }

    fn url(&self) -> Option<Arc<str>> {
        let is_allowed = self.kind_name() == Some("URL") && !self.core.is_policy_set("urlDisabled");
        self.core.filled_text("url").filter(|_| is_allowed)
    }

    fn html(&self) -> Option<Arc<str>> {
        let is_allowed =
            self.kind_name() == Some("HTML") && !self.core.is_policy_set("htmlDisabled");
        self.core.filled_text("html").filter(|_| is_allowed)
    }

    fn embeddable(&self) -> Option<Arc<str>> {
        let is_allowed = self.kind_name() == Some("EMBEDDABLE")
            && !self.core.is_policy_set("embeddablesDisabled");
        let chosen = self.core.filled_text("embeddableResourceType").filter(|_| is_allowed)?;
        match self.core.policy_value("allowedEmbeddables").map(|value| value.to_texts()) {
            Some(allowed) if !allowed.contains(&chosen) => None,
            _ => Some(chosen),
        }
    }

    /// Returns how to draw the address, if a processor knows it: with the name of the processor and its options.
    fn result(&self) -> ModelValue {
        let Some(url) = self.url() else { return ModelValue::Null };
        let (processor, options) = match pinterest_pin(&url) {
            Some(pin) => {
                let mut options = ModelMap::new();
                options.insert("pinId", pin);
                ("pinterest", options)
            }
            None => match self.oembed_options(&url) {
                Some(options) => ("oembed", options),
                None => return ModelValue::Null,
            },
        };
        let mut map = ModelMap::new();
        map.insert("processor", processor);
        map.insert("options", options);
        map.into()
    }

    fn oembed_options(&self, url: &str) -> Option<ModelMap> {
        let provider = PROVIDERS.iter().find(|provider| provider.matches(url))?;
        let encoded = utf8_percent_encode(url, NON_ALPHANUMERIC);
        let answer = self
            .core
            .context()
            .fetch_oembed(&format!("{}?url={encoded}&format=json", provider.endpoint))?;
        let mut response = ModelMap::new();
        for (name, value) in answer.members {
            response.insert(name, value);
        }
        let mut options = ModelMap::new();
        options.insert("provider", provider.name);
        options.insert("unsafeContext", provider.is_unsafe);
        options.insert("response", response);
        Some(options)
    }

    fn data(&self) -> Option<ComponentData> {
        let mut data = self.core.data()?;
        data.details.insert_present("embeddableDetails", self.embeddable_data());
        Some(data)
    }

    /// Returns what the data layer has about the player of an embeddable.
    fn embeddable_data(&self) -> ModelValue {
        match self.embeddable() {
            Some(resource_type) if resource_type.contains("/embeddable/youtube") => {
                let mut map = ModelMap::new();
                map.insert_present("youtubeVideoId", self.core.text("youtubeVideoId"));
                map.into()
            }
            _ => ModelValue::Null,
        }
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert_present("type", self.kind());
        map.insert_present("url", self.url());
        map.insert_present("html", self.html());
        map.insert_present("result", self.result());
        map.insert_present("embeddableResourceType", self.embeddable());
        self.core.export_end(&mut map, self.data());
        map
    }
}

impl OembedProvider {
    fn matches(&self, url: &str) -> bool {
        let Some((scheme, rest)) = url.split_once("://") else { return false };
        matches!(scheme, "http" | "https")
            && self.schemes.iter().any(|pattern| begins_with(rest, pattern))
    }
}

/// Returns whether a text begins with a pattern, where `*` stands for one or more letters but a slash.
fn begins_with(text: &str, pattern: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return text.starts_with(pattern) };
    let Some(rest) = text.strip_prefix(before) else { return false };
    let segment = rest.find('/').unwrap_or(rest.len());
    (1..=segment)
        .filter(|end| rest.is_char_boundary(*end))
        .any(|end| rest.get(end..).is_some_and(|rest| begins_with(rest, after)))
}

/// Returns the number of a pin in an address of Pinterest.
fn pinterest_pin(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"))?;
    let (host, path) = rest.split_once('/')?;
    let is_pinterest = host.strip_prefix("www.").unwrap_or(host).starts_with("pinterest.");
    let pin = path.strip_prefix("pin/").filter(|_| is_pinterest)?;
    let digits = pin.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(pin.len());
    pin.get(..digits).filter(|pin| !pin.is_empty())
}

impl YoutubeModel {
    fn video(&self) -> Option<Arc<str>> {
        self.core.filled_text("youtubeVideoId")
    }

    fn is_empty(&self) -> bool {
        self.video().is_none()
    }

    fn layout(&self) -> Option<Arc<str>> {
        self.core.filled_text("layout")
    }

    fn is_fixed(&self) -> bool {
        self.layout().as_deref() != Some("responsive")
    }

    fn width(&self) -> Option<Arc<str>> {
        self.core.filled_text("youtubeWidth").filter(|_| self.is_fixed())
    }

    fn height(&self) -> Option<Arc<str>> {
        self.core.filled_text("youtubeHeight").filter(|_| self.is_fixed())
    }

    fn aspect_ratio(&self) -> Option<Arc<str>> {
        self.core.filled_text("youtubeAspectRatio").filter(|_| !self.is_fixed())
    }

    fn accessibility_label(&self) -> Option<Arc<str>> {
        self.core.filled_text("accessibilityLabel")
    }

    /// Returns a setting: the component's where the policy lets an author choose, else the policy's default.
    fn setting(&self, name: &str, policy_name: &str) -> Option<bool> {
        let hidden = self.core.is_policy_set(&format!("{policy_name}Hidden"));
        let default = format!("{policy_name}DefaultValue");
        let own = if hidden { None } else { self.core.boolean(name) };
        own.or_else(|| self.core.policy_value(&default)?.to_boolean())
    }

    fn source(&self) -> Option<String> {
        let video = self.video()?;
        let video = utf8_percent_encode(&video, NON_ALPHANUMERIC).to_string();
        let video = video.replace("%2D", "-").replace("%5F", "_");
        let mut parameters = Vec::new();
        let flag = |value: bool| if value { "1" } else { "0" };
        if let Some(mute) = self.setting("youtubeMute", "youtubeMute") {
            parameters.push(format!("mute={}", flag(mute)));
        }
        if let Some(autoplay) = self.setting("youtubeAutoPlay", "youtubeAutoPlay") {
            parameters.push(format!("autoplay={}", flag(autoplay)));
        }
        if let Some(is_loop) = self.setting("youtubeLoop", "youtubeLoop") {
            parameters.push(format!("loop={}", flag(is_loop)));
            if is_loop {
                parameters.push(format!("playlist={video}"));
            }
        }
        if let Some(related) = self.setting("youtubeRel", "youtubeRel") {
            parameters.push(format!("rel={}", flag(related)));
        }
        if let Some(inline) = self.setting("youtubePlaysInline", "youtubePlaysInline") {
            parameters.push(format!("playsinline={}", flag(inline)));
        }
        let query = if parameters.is_empty() {
            String::new()
        } else {
            format!("?{}", parameters.join("&"))
        };
        Some(format!("https://www.youtube.com/embed/{video}{query}"))
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert_present("iFrameSrc", self.source());
        map.insert_present("iFrameWidth", self.width());
        map.insert_present("iFrameHeight", self.height());
        map.insert_present("iFrameAspectRatio", self.aspect_ratio());
        map.insert_present("layout", self.layout());
        map.insert_present("accessibilityLabel", self.accessibility_label());
        self.core.export_end(&mut map, self.core.data());
        map
    }
}

component_model!(EmbedModel {
    "type" => kind,
    "url" => url,
    "html" => html,
    "result" => result,
    "embeddableResourceType" => embeddable,
    "data" => data,
});

component_model!(YoutubeModel {
    "empty" => is_empty,
    "isEmpty" => is_empty,
    "layout" => layout,
    "iFrameSrc" => source,
    "iFrameWidth" => width,
    "iFrameHeight" => height,
    "iFrameAspectRatio" => aspect_ratio,
    "accessibilityLabel" => accessibility_label,
});

#[cfg(test)]
mod tests {
    use super::{PROVIDERS, pinterest_pin};

    #[test]
    fn addresses_choose_their_processor() {
        for (url, provider) in [
            ("https://www.youtube.com/watch?v=1", Some("YouTube")),
            ("https://m.youtube.com/watch?v=1", Some("YouTube")),
            ("https://youtu.be/1", Some("YouTube")),
            ("https://twitter.com/Adobe/status/1", Some("Twitter")),
            ("https://twitter.com//status/1", None),
            ("https://www.facebook.com/a/posts/1", Some("Facebook Post")),
            ("https://example.com/https://youtu.be/1", None),
            ("ftp://youtu.be/1", None),
            ("", None),
        ] {
            let found = PROVIDERS.iter().find(|provider| provider.matches(url));
            assert_eq!(found.map(|provider| provider.name), provider, "{url}");
        }
    }

    #[test]
    fn pins_are_numbers() {
        for (url, pin) in [
            ("https://www.pinterest.com/pin/146155950387/", Some("146155950387")),
            ("https://pinterest.de/pin/1", Some("1")),
            ("https://www.pinterest.com/pin/x", None),
            ("https://example.com/pin/1", None),
        ] {
            assert_eq!(pinterest_pin(url), pin, "{url}");
        }
    }
}
