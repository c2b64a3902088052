//! HTTP samplers: their own properties, the defaults in scope, and the managers in scope.

use super::super::charset::Charset;
use super::super::element::{Element, entries, inner};
use super::super::http::{Argument, Embedded, FilePart, HttpSpec, Login};
use super::super::model::{CacheManager, CookieManager};
use super::super::template::Template;
use super::{Compiler, Levels};

/// Elements that configure requests.
pub(super) fn is_config(class: &str) -> bool {
    matches!(
        class,
        "ConfigTestElement"
            | "HeaderManager"
            | "CookieManager"
            | "CacheManager"
            | "AuthManager"
            | "DNSCacheManager"
    )
}

/// Properties of requests that say nothing here, with the reason in the plan's own terms.
const HARMLESS: [&str; 3] =
    ["HTTPSampler.implementation", "HTTPSampler.concurrentPool", "HTTPSampler.monitor"];

/// What the editor of GraphQL requests shows; what is sent stands in the body.
const GRAPHQL: [&str; 3] = [
    "GraphQLHTTPSampler.operationName",
    "GraphQLHTTPSampler.query",
    "GraphQLHTTPSampler.variables",
];

/// Properties that mean something and are not supported.
const UNSUPPORTED: [(&str, &str); 3] = [
    ("HTTPSampler.proxyHost", "a proxy is not supported"),
    ("HTTPSampler.md5", "hashing the response is not supported"),
    ("HTTPSampler.proxyUser", "a proxy is not supported"),
];

impl<'a> Compiler<'a> {
    pub(super) fn http(&mut self, element: &'a Element<'a>, levels: &Levels<'_, 'a>) -> HttpSpec {
        let own =
            Levels { own: &element.children, outer: Some(levels), controller: levels.controller };
        let scope = own.elements();
        let defaults: Vec<&Element<'a>> = scope
            .iter()
            .copied()
            .filter(|part| part.class == "ConfigTestElement" && is_http_defaults(part))
            .collect();
        for part in &defaults {
            self.check_request(part);
            part.ignore(&["HTTPsampler.Arguments"]);
        }
        self.check_request(element);
        let mut sources = vec![element];
        sources.extend(defaults.iter().copied());
        let is_java = element.class == "HTTPSampler"
            || sources.iter().any(|source| source.text("HTTPSampler.implementation") == "Java");
        let mut spec = HttpSpec {
            is_java,
            protocol: self.first(&sources, "HTTPSampler.protocol"),
            domain: self.first(&sources, "HTTPSampler.domain"),
            port: self.first(&sources, "HTTPSampler.port"),
            path: self.first(&sources, "HTTPSampler.path"),
            method: self.first(&sources, "HTTPSampler.method"),
            connect_timeout: self.first(&sources, "HTTPSampler.connect_timeout"),
            response_timeout: self.first(&sources, "HTTPSampler.response_timeout"),
            source: self.first(&sources, "HTTPSampler.ipSource"),
            charset: self.content_charset(&sources),
            is_raw: sources.iter().any(|source| source.flag("HTTPSampler.postBodyRaw", false)),
            is_multipart: element.flag("HTTPSampler.DO_MULTIPART_POST", false),
            is_browser_form: flag_of(&sources, "HTTPSampler.BROWSER_COMPATIBLE_MULTIPART"),
            follows: flag_of(&sources, "HTTPSampler.follow_redirects"),
            follows_silently: flag_of(&sources, "HTTPSampler.auto_redirects"),
            keep_alive: flag_of(&sources, "HTTPSampler.use_keepalive"),
            ..HttpSpec::default()
        };
        for source in &sources {
            spec.arguments.extend(self.arguments(source));
        }
        spec.files = self.files(element);
        spec.embedded = self.embedded(&sources);
        self.managers(&scope, &mut spec);
        let has_digest = !spec.is_java && spec.logins.iter().any(|login| !login.is_basic);
        if has_digest && spec.embedded.is_some() {
            self.refuse(element, "parts of a page behind digest authorization are not supported");
        }
        for part in &defaults {
            self.close(part);
        }
        spec
    }

    fn check_request(&mut self, element: &Element<'a>) {
        element.ignore(&HARMLESS);
        element.ignore(&GRAPHQL);
        for (name, why) in UNSUPPORTED {
            if !matches!(element.text(name).trim(), "" | "false") {
                let why = format!("property {name} is set; {why}");
                self.refuse(element, &why);
            }
        }
        let kind = element.text("HTTPSampler.ipSourceType").trim();
        if !matches!(kind, "" | "0") {
            self.refuse(element, "sending from a device is not supported, only from an address");
        }
        element.ignore(&[
            "HTTPSampler.ipSourceType",
            "HTTPSampler.proxyPort",
            "HTTPSampler.proxyPass",
            "HTTPSampler.proxyScheme",
        ]);
    }

    /// Returns the first value that is set: the sampler's own, else that of the nearest defaults.
    fn first(&mut self, sources: &[&Element<'a>], name: &'a str) -> Template {
        let mut found = None;
        for source in sources {
            let text = source.text(name);
            if found.is_none() && !text.is_empty() {
                found = Some(*source);
            }
        }
        match found {
            Some(source) => self.property(source, name),
            None => Template::default(),
        }
    }

    /// Returns the character set of parameters and bodies: the sampler's own, else that of the nearest defaults.
    fn content_charset(&mut self, sources: &[&Element<'a>]) -> Charset {
        let mut charset = None;
        for source in sources {
            let name = source.text("HTTPSampler.contentEncoding").trim();
            if charset.is_none() && !name.is_empty() {
                charset = Some(self.charset(source, name));
            }
        }
        charset.unwrap_or_default()
    }

    fn arguments(&mut self, element: &Element<'a>) -> Vec<Argument> {
        let list = entries(element.find("HTTPsampler.Arguments"), "Arguments.arguments");
        list.iter()
            .map(|entry| {
                let text = |name: &str| inner(*entry, name).unwrap_or_default();
                let has_equals = inner(*entry, "HTTPArgument.use_equals") != Some("false");
                let separator = match inner(*entry, "Argument.metadata") {
                    Some(separator) => separator.to_owned(),
                    None if has_equals => "=".to_owned(),
                    None => String::new(),
                };
                Argument {
                    name: self.template(element, text("Argument.name")),
                    value: self.template(element, text("Argument.value")),
                    encodes: text("HTTPArgument.always_encode") == "true",
                    separator,
                }
            })
            .collect()
    }

    fn files(&mut self, element: &Element<'a>) -> Vec<FilePart> {
        let list = entries(element.find("HTTPsampler.Files"), "HTTPFileArgs.files");
        let mut files: Vec<FilePart> = list
            .iter()
            .map(|entry| {
                let text = |name: &str| inner(*entry, name).unwrap_or_default();
                FilePart {
                    path: self.template(element, text("File.path")),
                    name: self.template(element, text("File.paramname")),
                    media_type: self.template(element, text("File.mimetype")),
                }
            })
            .collect();
        // Plans of JMeter 2 name one file beside the others.
        let path = self.property(element, "HTTPSampler.FILE_NAME");
        if !path.is_empty() {
            let name = self.property(element, "HTTPSampler.FILE_FIELD");
            let media_type = self.property(element, "HTTPSampler.mimetype");
            files.push(FilePart { path, name, media_type });
        }
        element.ignore(&["HTTPSampler.FILE_FIELD", "HTTPSampler.mimetype"]);
        files
    }

    fn embedded(&mut self, sources: &[&Element<'a>]) -> Option<Embedded> {
        let wants = flag_of(sources, "HTTPSampler.image_parser");
        let parallel = flag_of(sources, "HTTPSampler.concurrentDwn");
        let only = self.first(sources, "HTTPSampler.embedded_url_re");
        let except = self.first(sources, "HTTPSampler.embedded_url_exclude_re");
        let pool = sources
            .iter()
            .find_map(|source| source.text("HTTPSampler.concurrentPool").trim().parse().ok())
            .unwrap_or(6);
        wants.then(|| Embedded {
            parallel: if parallel { pool } else { 1 },
            only: (!only.is_empty()).then_some(only),
            except: (!except.is_empty()).then_some(except),
        })
    }

    fn managers(&mut self, scope: &[&Element<'a>], spec: &mut HttpSpec) {
        for part in scope {
            match part.class {
                // The nearest manager gives all that it has, the same name twice too; farther ones what is missing.
                "HeaderManager" if spec.headers.is_empty() => spec.headers = self.headers(part),
                "HeaderManager" => {
                    for (name, value) in self.headers(part) {
                        let known = |(other, _): &(Template, Template)| {
                            other.source().eq_ignore_ascii_case(name.source())
                        };
                        if !spec.headers.iter().any(known) {
                            spec.headers.push((name, value));
                        }
                    }
                }
                "CookieManager" if spec.cookies.is_none() => {
                    spec.cookies = Some(self.cookie_manager(part))
                }
                "CacheManager" if spec.cache.is_none() => {
                    spec.cache = Some(self.cache_manager(part))
                }
                "AuthManager" if spec.logins.is_empty() => spec.logins = self.logins(part),
                "DNSCacheManager" if spec.hosts.is_none() => {
                    let hosts = self.hosts(part);
                    // Java's own client resolves names by itself.
                    spec.hosts = (!spec.is_java).then_some(hosts);
                }
                _ => {}
            }
        }
    }

    fn headers(&mut self, element: &Element<'a>) -> Vec<(Template, Template)> {
        let list = entries(element.find("HeaderManager.headers"), "");
        let headers = list
            .iter()
            .map(|entry| {
                let text = |name: &str| inner(*entry, name).unwrap_or_default();
                (
                    self.template(element, text("Header.name")),
                    self.template(element, text("Header.value")),
                )
            })
            .collect();
        self.close(element);
        headers
    }

    fn cookie_manager(&mut self, element: &Element<'a>) -> usize {
        if let Some(&place) = self.known.get(&element.id()) {
            return place;
        }
        let list = entries(element.find("CookieManager.cookies"), "");
        let cookies = list
            .iter()
            .map(|entry| {
                let text =
                    |name: &str| self.template(element, inner(*entry, name).unwrap_or_default());
                let name = self.template(element, entry.attribute("name").unwrap_or_default());
                let parts =
                    [name, text("Cookie.value"), text("Cookie.domain"), text("Cookie.path")];
                (parts, inner(*entry, "Cookie.secure") == Some("true"))
            })
            .collect();
        let policy = element.text("CookieManager.policy").trim();
        // These add words of their own to what is sent.
        if matches!(policy, "rfc2109" | "rfc2965") {
            let why = format!("cookie policy `{policy}` is not supported");
            self.refuse(element, &why);
        }
        let manager = CookieManager {
            cookies,
            ignores: policy == "ignorecookies",
            clears: element.flag("CookieManager.clearEachIteration", false),
            by_group: element.flag("CookieManager.controlledByThreadGroup", false),
        };
        self.close(element);
        self.model.cookies.push(manager);
        self.remember(element, self.model.cookies.len() - 1)
    }

    fn cache_manager(&mut self, element: &Element<'a>) -> usize {
        if let Some(&place) = self.known.get(&element.id()) {
            return place;
        }
        element.ignore(&["maxSize", "CacheManager.controlledByThread"]);
        let manager = CacheManager {
            clears: element.flag("clearEachIteration", false),
            uses_expires: element.flag("useExpires", false),
        };
        self.close(element);
        self.model.caches.push(manager);
        self.remember(element, self.model.caches.len() - 1)
    }

    /// Compiles the addresses that a DNS cache manager gives names.
    fn hosts(&mut self, element: &Element<'a>) -> usize {
        if let Some(&place) = self.known.get(&element.id()) {
            return place;
        }
        // Names are resolved once for a run.
        element.ignore(&["DNSCacheManager.clearEachIteration"]);
        let servers = entries(element.find("DNSCacheManager.servers"), "");
        let is_custom = element.flag("DNSCacheManager.isCustomResolver", false);
        if is_custom && !servers.is_empty() {
            self.refuse(element, "it asks name servers of its own, which is not supported");
        }
        let list = entries(element.find("DNSCacheManager.hosts"), "");
        let mut hosts = Vec::new();
        for entry in list {
            let text = |name: &str| inner(entry, name).unwrap_or_default().trim();
            hosts.push((
                self.template(element, text("StaticHost.Name")),
                self.template(element, text("StaticHost.Address")),
            ));
        }
        self.close(element);
        self.model.hosts.push(hosts);
        self.remember(element, self.model.hosts.len() - 1)
    }

    fn logins(&mut self, element: &Element<'a>) -> Vec<Login> {
        element.ignore(&["AuthManager.clearEachIteration", "AuthManager.controlledByThreadGroup"]);
        let list = entries(element.find("AuthManager.auth_list"), "");
        let mut logins = Vec::new();
        for entry in &list {
            let text = |name: &str| inner(*entry, name).unwrap_or_default();
            let mechanism = text("Authorization.mechanism");
            let is_known = matches!(mechanism, "" | "BASIC" | "BASIC_DIGEST" | "DIGEST");
            if !is_known {
                let why =
                    format!("authorization by {mechanism} is not supported, only BASIC and DIGEST");
                self.refuse(element, &why);
            }
            logins.push(Login {
                url: self.template(element, text("Authorization.url")),
                user: self.template(element, text("Authorization.username")),
                password: self.template(element, text("Authorization.password")),
                realm: self.template(element, text("Authorization.realm")),
                is_basic: mechanism != "DIGEST",
            });
        }
        self.close(element);
        logins
    }
}

fn is_http_defaults(element: &Element<'_>) -> bool {
    element.node.attribute("guiclass").is_none_or(|gui| gui.ends_with("HttpDefaultsGui"))
}

/// Returns a switch as the first source says that mentions it.
fn flag_of<'a>(sources: &[&Element<'a>], name: &'a str) -> bool {
    let mut found = None;
    for source in sources {
        let is_set = source.find(name).is_some();
        if is_set && found.is_none() {
            found = Some(source.flag(name, false));
        }
    }
    found.unwrap_or(false)
}
