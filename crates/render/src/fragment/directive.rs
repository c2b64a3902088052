//! Cache directives of a component: the keywords of OpenCms's property `cache`.
//!
//! Input: a text such as `uri;params=(page,sort);timeout=10`. Output: [`FragmentDirectives`], and the variation of a
//! request under them: a text that distinguishes outputs that may differ.
//!
//! Differences from OpenCms: the order of keywords does not matter (there, `locale;always` differs from
//! `always;locale`). All values of a parameter count, sorted by name, with their lengths, so that no two requests share
//! a text by accident. Fragments that expire at multiples of minutes since midnight expire at a different time for each
//! variation, unless `aligned` is given.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use crate::request::RequestParameters;

/// The longest timeout of a fragment, in minutes: a century. A longer one would exceed the range of times.
const MAX_TIMEOUT_MINUTES: u64 = 100 * 365 * 24 * 60;

/// The named items that a keyword applies to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum ParameterSelection {
    #[default]
    None,
    All,
    Listed(Vec<String>),
}

impl ParameterSelection {
    fn includes(&self, name: &str) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Listed(names) => names.iter().any(|listed_name| listed_name == name),
        }
    }
}

/// A keyword without values that adds something to the variation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum VaryDirective {
    Uri,
    Site,
    Element,
    Device,
    ContainerElement,
    Locale,
    Encoding,
    Ip,
    User,
}

/// The keywords, in the order in which they add to a variation.
const VARY_DIRECTIVES: [(&str, VaryDirective); 9] = [
    ("uri", VaryDirective::Uri),
    ("site", VaryDirective::Site),
    ("element", VaryDirective::Element),
    ("device", VaryDirective::Device),
    ("container-element", VaryDirective::ContainerElement),
    ("locale", VaryDirective::Locale),
    ("encoding", VaryDirective::Encoding),
    ("ip", VaryDirective::Ip),
    ("user", VaryDirective::User),
];

/// Reason why a fragment is not cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UncachedReason {
    /// The component declares `never`, or declares nothing.
    Never,
    /// Its directives are invalid.
    Malformed,
    /// Its directives add nothing to a variation.
    NoVariation,
    /// It declares `stream` or `bypass`.
    Stream,
    /// The request has a parameter that forbids caching.
    Parameter,
    /// The scheme or port is not listed.
    SchemeOrPort,
    /// A component in it failed.
    Failed,
    /// It exceeds the maximum entry size.
    TooLarge,
    /// Its output is not text, or it read the time of day.
    Uncacheable,
    /// The including component changes its output.
    Transformed,
    /// Content changed during the rendering.
    Outdated,
    /// The user requested a new rendering.
    Bypassed,
}

impl UncachedReason {
    /// All reasons.
    pub const ALL_REASONS: [Self; 12] = [
        Self::Never,
        Self::Malformed,
        Self::NoVariation,
        Self::Stream,
        Self::Parameter,
        Self::SchemeOrPort,
        Self::Failed,
        Self::TooLarge,
        Self::Uncacheable,
        Self::Transformed,
        Self::Outdated,
        Self::Bypassed,
    ];

    /// Returns the name for logs and counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Malformed => "mistake",
            Self::NoVariation => "empty",
            Self::Stream => "stream",
            Self::Parameter => "parameter",
            Self::SchemeOrPort => "front",
            Self::Failed => "failed",
            Self::TooLarge => "too-large",
            Self::Uncacheable => "special",
            Self::Transformed => "changed",
            Self::Outdated => "outdated",
            Self::Bypassed => "asked",
        }
    }
}

/// The parts of a request that may be in a variation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VariationInput<'a> {
    /// The path of the requested page with selectors, extension and suffix.
    pub uri: &'a str,
    pub site: &'a str,
    pub scheme: &'a str,
    pub port: u16,
    pub user: &'a str,
    pub ip: &'a str,
    pub device: &'a str,
    pub locale: &'a str,
    pub parameters: &'a RequestParameters,
}

/// The directives of one component.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FragmentDirectives {
    has_always: bool,
    refusal_reason: Option<UncachedReason>,
    vary: Vec<VaryDirective>,
    included_params: ParameterSelection,
    forbidden_params: ParameterSelection,
    schemes: Option<Vec<String>>,
    ports: Option<Vec<u16>>,
    timeout: Option<Duration>,
    is_aligned: bool,
    /// True if a keyword adds to variations, even if it adds nothing for this request.
    adds_to_variation: bool,
}

impl FragmentDirectives {
    /// Returns the directives of a component without any.
    pub(crate) fn never() -> Self {
        Self { refusal_reason: Some(UncachedReason::Never), ..Self::default() }
    }

    /// Parses directives. Returns a message if they are invalid; they then count as `never`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut directives = Self::default();
        for directive in text.split(';').map(str::trim).filter(|directive| !directive.is_empty()) {
            let (name, value) = match directive.split_once('=') {
                Some((name, value)) => (name.trim(), Some(value.trim())),
                None => (directive, None),
            };
            directives.apply_directive(name, value)?;
        }
        if directives.refusal_reason.is_none()
            && !directives.has_always
            && !directives.adds_to_variation
        {
            directives.refusal_reason = Some(if text.trim().is_empty() {
                UncachedReason::Never
            } else {
                UncachedReason::NoVariation
            });
        }
        Ok(directives)
    }

    /// Returns the directives of a component with invalid ones.
    pub(crate) fn malformed() -> Self {
        Self { refusal_reason: Some(UncachedReason::Malformed), ..Self::default() }
    }

    fn apply_directive(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        let bare = || match value {
            None => Ok(()),
            Some(_) => Err(format!("`{name}` takes no value")),
        };
        if let Some((_, vary)) = VARY_DIRECTIVES.iter().find(|(keyword, _)| *keyword == name) {
            bare()?;
            self.vary.push(*vary);
            self.vary.sort_unstable();
            self.vary.dedup();
            self.adds_to_variation = true;
            return Ok(());
        }
        match name {
            "always" | "true" => bare().map(|()| self.has_always = true),
            "never" | "false" => bare().map(|()| self.refusal_reason = Some(UncachedReason::Never)),
            "stream" | "bypass" => {
                bare().map(|()| self.refusal_reason = Some(UncachedReason::Stream))
            }
            "parse-error" => bare(),
            "aligned" => bare().map(|()| self.is_aligned = true),
            "params" => {
                self.included_params = parse_parameter_selection(value);
                self.adds_to_variation = true;
                Ok(())
            }
            "no-params" => {
                self.forbidden_params = parse_parameter_selection(value);
                Ok(())
            }
            // Templates pass nothing on but selectors, which are part of the key anyway.
            "attrs" => {
                self.adds_to_variation = true;
                Ok(())
            }
            "no-attrs" => Ok(()),
            // There are no sessions, so that their values are absent and the part is omitted.
            "session" => match parse_parameter_selection(value) {
                ParameterSelection::Listed(_) => Ok(()),
                _ => Err("`session` needs names: `session=(name)`".to_owned()),
            },
            "schemes" => {
                self.schemes = Some(parse_required_list(name, value)?);
                self.adds_to_variation = true;
                Ok(())
            }
            "ports" => {
                let ports = parse_required_list(name, value)?;
                let ports: Result<Vec<u16>, _> = ports.iter().map(|port| port.parse()).collect();
                self.ports = Some(ports.map_err(|_| "`ports` needs numbers".to_owned())?);
                self.adds_to_variation = true;
                Ok(())
            }
            "timeout" => {
                let minutes = value.map(|value| value.trim_matches(['(', ')']).trim());
                let minutes: Option<u64> = minutes.and_then(|minutes| minutes.parse().ok());
                let minutes = minutes.filter(|minutes| *minutes > 0);
                let minutes = minutes.ok_or("`timeout` needs a number of minutes")?;
                self.timeout = Some(Duration::from_secs(minutes.min(MAX_TIMEOUT_MINUTES) * 60));
                self.adds_to_variation = true;
                Ok(())
            }
            _ => Err(format!("`{name}` is not a directive")),
        }
    }

    /// Returns the reason why no output is cached for any request; `None` if caching is possible.
    pub(crate) fn refusal_reason(&self) -> Option<UncachedReason> {
        self.refusal_reason
    }

    /// Returns the variation of a request, or the reason why its output is not cached.
    pub(crate) fn variation(&self, input: &VariationInput<'_>) -> Result<String, UncachedReason> {
        if let Some(reason) = self.refusal_reason {
            return Err(reason);
        }
        if input.parameters.names().any(|name| self.forbidden_params.includes(name)) {
            return Err(UncachedReason::Parameter);
        }
        if self.schemes.as_ref().is_some_and(|all| !all.iter().any(|scheme| scheme == input.scheme))
            || self.ports.as_ref().is_some_and(|all| !all.contains(&input.port))
        {
            return Err(UncachedReason::SchemeOrPort);
        }
        if self.has_always {
            return Ok("always".to_owned());
        }
        let mut text = String::new();
        let mut add = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{name}={}:{value};", value.len());
        };
        for vary in &self.vary {
            match vary {
                VaryDirective::Uri => add("uri", input.uri),
                VaryDirective::Site => add("site", input.site),
                VaryDirective::Element => {
                    add("element", &join_parameter_values(input.parameters, "__element"))
                }
                VaryDirective::Device => add("device", input.device),
                // Fragments are cached per component path already.
                VaryDirective::ContainerElement => {}
                VaryDirective::Locale => add("locale", input.locale),
                VaryDirective::Encoding => add("encoding", "UTF-8"),
                VaryDirective::Ip => add("ip", input.ip),
                VaryDirective::User => add("user", input.user),
            }
        }
        let mut names: Vec<&str> =
            input.parameters.names().filter(|name| self.included_params.includes(name)).collect();
        names.sort_unstable();
        for name in names {
            add("param", name);
            add("values", &join_parameter_values(input.parameters, name));
        }
        if self.schemes.is_some() {
            add("scheme", input.scheme);
        }
        if self.ports.is_some() {
            add("port", &input.port.to_string());
        }
        Ok(text)
    }

    /// Returns the expiry time of output that is cached now; `spread` distinguishes variations.
    pub(crate) fn expiry_time(&self, now: SystemTime, spread: u64) -> Option<SystemTime> {
        let timeout = self.timeout?;
        if !self.is_aligned {
            // Up to a tenth earlier, so that fragments cached at the same time do not expire at the same time.
            let early = timeout.as_millis() as u64 / 10;
            return Some(now + timeout - Duration::from_millis(spread % early.max(1)));
        }
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let day = Duration::from_secs(since.as_secs() / 86_400 * 86_400);
        let passed = (since - day).as_millis() / timeout.as_millis() + 1;
        let next = timeout.saturating_mul(u32::try_from(passed).unwrap_or(u32::MAX));
        Some(SystemTime::UNIX_EPOCH + day + next)
    }
}

/// Joins the values of a parameter, each with its length.
fn join_parameter_values(parameters: &RequestParameters, name: &str) -> String {
    let values = parameters.values(name).unwrap_or_default();
    values.iter().map(|value| format!("{}:{value},", value.len())).collect()
}

/// Parses `(a,b)`; no value or `()` means all.
fn parse_parameter_selection(value: Option<&str>) -> ParameterSelection {
    let names = value.map(split_names).unwrap_or_default();
    if names.is_empty() { ParameterSelection::All } else { ParameterSelection::Listed(names) }
}

fn parse_required_list(name: &str, value: Option<&str>) -> Result<Vec<String>, String> {
    let names = value.map(split_names).unwrap_or_default();
    if names.is_empty() {
        Err(format!("`{name}` needs a list: `{name}=(one,two)`"))
    } else {
        Ok(names)
    }
}

fn split_names(value: &str) -> Vec<String> {
    let inner = value.strip_prefix('(').and_then(|value| value.strip_suffix(')')).unwrap_or(value);
    inner.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the variation of a request for `/a.html` with a query, or the reason why there is none.
    fn variation(text: &str, query: &str) -> String {
        let parameters = RequestParameters::parse(query);
        let input = VariationInput {
            uri: "/a.html",
            site: "/content/site",
            scheme: "https",
            port: 443,
            user: "guest",
            ip: "127.0.0.1",
            device: "mobile",
            locale: "en",
            parameters: &parameters,
        };
        match FragmentDirectives::parse(text).map(|directives| directives.variation(&input)) {
            Err(mistake) => format!("mistake: {mistake}"),
            Ok(Err(reason)) => format!("not kept: {}", reason.name()),
            Ok(Ok(text)) => text,
        }
    }

    #[track_caller]
    fn check(text: &str, query: &str, expected: &str) {
        assert_eq!(variation(text, query), expected, "{text} ?{query}");
    }

    #[test]
    fn words_and_what_they_add() {
        check("", "", "not kept: never");
        check("always", "a=1", "always");
        check("true", "", "always");
        check("never;always", "", "not kept: never");
        check("always; false", "", "not kept: never");
        check("uri", "", "uri=7:/a.html;");
        check(" locale ; uri ", "", "uri=7:/a.html;locale=2:en;");
        check(
            "site;device;encoding;ip;user",
            "",
            "site=13:/content/site;device=6:mobile;encoding=5:UTF-8;ip=9:127.0.0.1;user=5:guest;",
        );
        check("schemes=(http,https);ports=(443)", "", "scheme=5:https;port=3:443;");
        check("schemes=(http)", "", "not kept: front");
        check("ports=(80, 8080)", "", "not kept: front");
        check("stream", "", "not kept: stream");
        check("container-element", "", "");
        check("timeout=5", "", "");
        check("parse-error;uri", "", "uri=7:/a.html;");
    }

    #[test]
    fn parameters_count_whole_and_in_one_order() {
        check("params", "b=2&a=1", "param=1:a;values=4:1:1,;param=1:b;values=4:1:2,;");
        assert_eq!(variation("params", "a=1&b=2"), variation("params", "b=2&a=1"));
        assert_ne!(variation("params", "a=1,b=2"), variation("params", "a=1&b=2"));
        assert_ne!(variation("params", "a=1&a=2"), variation("params", "a=1&a=3"));
        check("params=(page)", "page=2&utm=x", "param=4:page;values=4:1:2,;");
        check("params=(page)", "utm=x", "");
        check("uri;no-params", "a=1", "not kept: parameter");
        check("uri;no-params=(b)", "a=1", "uri=7:/a.html;");
        check("element", "__element=x", "element=4:1:x,;");
    }

    #[test]
    fn the_order_of_words_does_not_matter() {
        for (left, right) in [
            ("always;locale", "locale;always"),
            ("always;no-params", "no-params;always"),
            ("uri;params;locale", "locale;params;uri"),
        ] {
            assert_eq!(variation(left, ""), variation(right, ""), "{left}");
            assert_eq!(variation(left, "x=1"), variation(right, "x=1"), "{left}");
        }
        check("no-params;always", "", "always");
        check("no-params", "", "not kept: empty");
    }

    #[test]
    fn mistakes_are_reported() {
        check("groups", "", "mistake: `groups` is not a directive");
        check("always=1", "", "mistake: `always` takes no value");
        check("session", "", "mistake: `session` needs names: `session=(name)`");
        check("timeout=soon", "", "mistake: `timeout` needs a number of minutes");
        check("timeout=0", "", "mistake: `timeout` needs a number of minutes");
        check("ports=(http)", "", "mistake: `ports` needs numbers");
        check("schemes", "", "mistake: `schemes` needs a list: `schemes=(one,two)`");
    }

    #[test]
    fn what_times_out_does_so_at_its_own_time() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(86_400 * 9 + 61);
        let seconds = |text: &str, spread| {
            let expires = FragmentDirectives::parse(text).unwrap().expiry_time(now, spread);
            expires.map(|at| at.duration_since(now).unwrap().as_millis())
        };
        assert_eq!(seconds("uri", 0), None);
        assert_eq!(seconds("timeout=10", 0), Some(600_000));
        assert_eq!(seconds("timeout=10", 59_999), Some(540_001));
        assert_eq!(seconds("timeout=10;aligned", 5), Some(539_000));
        assert_eq!(seconds("aligned;timeout=1", 5), Some(59_000));
        // A timeout of more than a century has no other effect.
        let century = Some(u128::from(MAX_TIMEOUT_MINUTES) * 60_000);
        assert_eq!(seconds("timeout=18446744073709551615", 0), century);
        assert!(seconds("aligned;timeout=18446744073709551615", 0) > Some(0));
    }
}
