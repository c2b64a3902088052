//! HTTP samplers: their own properties, the defaults in scope, and the managers in scope.

use super::super::charset::JavaCharset;
use super::super::http_spec::{
    EmbeddedResourceSpec, FileUpload, HttpArgument, HttpCredentials, HttpSamplerSpec,
};
use super::super::jmx_element::{JmxElement, collection_entries, nested_text};
use super::super::model::{CacheManager, CookieManager};
use super::super::template::TextTemplate;
use super::element_reader::JmxElementReader;
use super::{ElementScope, JmxCompiler};

/// Returns true for elements that configure requests.
pub(super) fn is_request_config(class: &str) -> bool {
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

/// Request properties without effect here, with the reason in the plan's own terms.
const HARMLESS_PROPERTIES: [&str; 3] =
    ["HTTPSampler.implementation", "HTTPSampler.concurrentPool", "HTTPSampler.monitor"];

/// Properties for display in the GraphQL editor; the body holds the data that is sent.
const GRAPHQL_EDITOR_PROPERTIES: [&str; 3] = [
    "GraphQLHTTPSampler.operationName",
    "GraphQLHTTPSampler.query",
    "GraphQLHTTPSampler.variables",
];

/// Unsupported properties that would change the behavior.
const UNSUPPORTED_PROPERTIES: [(&str, &str); 3] = [
    ("HTTPSampler.proxyHost", "a proxy is not supported"),
    ("HTTPSampler.md5", "hashing the response is not supported"),
    ("HTTPSampler.proxyUser", "a proxy is not supported"),
];

impl<'a> JmxCompiler<'a> {
    pub(super) fn compile_http_spec(
        &mut self,
        element: &'a JmxElement<'a>,
        levels: &ElementScope<'_, 'a>,
    ) -> HttpSamplerSpec {
        let own = ElementScope {
            level_elements: &element.children,
            outer_scope: Some(levels),
            controller: levels.controller,
        };
        let scope = own.elements();
        let defaults: Vec<&JmxElement<'a>> = scope
            .iter()
            .copied()
            .filter(|part| part.class == "ConfigTestElement" && is_http_defaults(part))
            .collect();
        for part in &defaults {
            check_request(&mut self.reader, part);
            part.ignore_properties(&["HTTPsampler.Arguments"]);
        }
        check_request(&mut self.reader, element);
        let mut sources = vec![element];
        sources.extend(defaults.iter().copied());
        let is_java = element.class == "HTTPSampler"
            || sources
                .iter()
                .any(|source| source.text_property("HTTPSampler.implementation") == "Java");
        let mut spec = HttpSamplerSpec {
            is_java_client: is_java,
            protocol: first_set_property(&mut self.reader, &sources, "HTTPSampler.protocol"),
            domain: first_set_property(&mut self.reader, &sources, "HTTPSampler.domain"),
            port: first_set_property(&mut self.reader, &sources, "HTTPSampler.port"),
            path: first_set_property(&mut self.reader, &sources, "HTTPSampler.path"),
            method: first_set_property(&mut self.reader, &sources, "HTTPSampler.method"),
            connect_timeout: first_set_property(
                &mut self.reader,
                &sources,
                "HTTPSampler.connect_timeout",
            ),
            response_timeout: first_set_property(
                &mut self.reader,
                &sources,
                "HTTPSampler.response_timeout",
            ),
            source_address: first_set_property(&mut self.reader, &sources, "HTTPSampler.ipSource"),
            charset: content_charset(&mut self.reader, &sources),
            is_raw_body: sources
                .iter()
                .any(|source| source.flag_property("HTTPSampler.postBodyRaw", false)),
            is_multipart: element.flag_property("HTTPSampler.DO_MULTIPART_POST", false),
            is_browser_form: first_set_flag(&sources, "HTTPSampler.BROWSER_COMPATIBLE_MULTIPART"),
            follows_redirects: first_set_flag(&sources, "HTTPSampler.follow_redirects"),
            follows_redirects_silently: first_set_flag(&sources, "HTTPSampler.auto_redirects"),
            keep_alive: first_set_flag(&sources, "HTTPSampler.use_keepalive"),
            ..HttpSamplerSpec::default()
        };
        for source in &sources {
            spec.arguments.extend(compile_arguments(&mut self.reader, source));
        }
        spec.file_uploads = compile_file_uploads(&mut self.reader, element);
        spec.embedded_resources = compile_embedded_spec(&mut self.reader, &sources);
        self.apply_config_managers(&scope, &mut spec);
        let has_digest =
            !spec.is_java_client && spec.credentials.iter().any(|login| !login.is_preemptive_basic);
        if has_digest && spec.embedded_resources.is_some() {
            self.reader.report_unsupported(
                element,
                "embedded resources with digest authorization are not supported",
            );
        }
        for part in &defaults {
            self.reader.report_unread_properties(part);
        }
        spec
    }

    fn apply_config_managers(&mut self, scope: &[&JmxElement<'a>], spec: &mut HttpSamplerSpec) {
        for part in scope {
            match part.class {
                // The nearest manager provides all of its headers, including duplicates; farther ones provide the
                // missing names.
                "HeaderManager" if spec.headers.is_empty() => {
                    spec.headers = compile_headers(&mut self.reader, part)
                }
                "HeaderManager" => {
                    for (name, value) in compile_headers(&mut self.reader, part) {
                        let is_same_name = |(header_name, _): &(TextTemplate, TextTemplate)| {
                            header_name.source().eq_ignore_ascii_case(name.source())
                        };
                        if !spec.headers.iter().any(is_same_name) {
                            spec.headers.push((name, value));
                        }
                    }
                }
                "CookieManager" if spec.cookie_manager.is_none() => {
                    spec.cookie_manager = Some(self.add_cookie_manager(part))
                }
                "CacheManager" if spec.cache_manager.is_none() => {
                    spec.cache_manager = Some(self.add_cache_manager(part))
                }
                "AuthManager" if spec.credentials.is_empty() => {
                    spec.credentials = compile_credentials(&mut self.reader, part)
                }
                "DNSCacheManager" if spec.host_addresses.is_none() => {
                    let hosts = self.add_host_addresses(part);
                    // Java's own client resolves names itself.
                    spec.host_addresses = (!spec.is_java_client).then_some(hosts);
                }
                _ => {}
            }
        }
    }

    fn add_cookie_manager(&mut self, element: &JmxElement<'a>) -> usize {
        if let Some(&index) = self.shared_elements.get(&element.id()) {
            return index;
        }
        let list = collection_entries(element.find_property("CookieManager.cookies"), "");
        let cookies = list
            .iter()
            .map(|entry| {
                let text = |name: &str| {
                    self.reader
                        .compile_template(element, nested_text(*entry, name).unwrap_or_default())
                };
                let name = self
                    .reader
                    .compile_template(element, entry.attribute("name").unwrap_or_default());
                let parts =
                    [name, text("Cookie.value"), text("Cookie.domain"), text("Cookie.path")];
                (parts, nested_text(*entry, "Cookie.secure") == Some("true"))
            })
            .collect();
        let policy = element.text_property("CookieManager.policy").trim();
        // These policies add attributes to the sent cookies.
        if matches!(policy, "rfc2109" | "rfc2965") {
            let why = format!("cookie policy `{policy}` is not supported");
            self.reader.report_unsupported(element, &why);
        }
        let manager = CookieManager {
            cookies,
            ignores_cookies: policy == "ignorecookies",
            clears_each_iteration: element.flag_property("CookieManager.clearEachIteration", false),
            is_controlled_by_group: element
                .flag_property("CookieManager.controlledByThreadGroup", false),
        };
        self.reader.report_unread_properties(element);
        self.model.cookie_managers.push(manager);
        self.remember_shared_element(element, self.model.cookie_managers.len() - 1)
    }

    fn add_cache_manager(&mut self, element: &JmxElement<'a>) -> usize {
        if let Some(&index) = self.shared_elements.get(&element.id()) {
            return index;
        }
        element.ignore_properties(&["maxSize", "CacheManager.controlledByThread"]);
        let manager = CacheManager {
            clears_each_iteration: element.flag_property("clearEachIteration", false),
            uses_expires: element.flag_property("useExpires", false),
        };
        self.reader.report_unread_properties(element);
        self.model.cache_managers.push(manager);
        self.remember_shared_element(element, self.model.cache_managers.len() - 1)
    }

    /// Compiles the addresses that a DNS cache manager assigns to names.
    fn add_host_addresses(&mut self, element: &JmxElement<'a>) -> usize {
        if let Some(&index) = self.shared_elements.get(&element.id()) {
            return index;
        }
        // Names are resolved once per run.
        element.ignore_properties(&["DNSCacheManager.clearEachIteration"]);
        let servers = collection_entries(element.find_property("DNSCacheManager.servers"), "");
        let is_custom = element.flag_property("DNSCacheManager.isCustomResolver", false);
        if is_custom && !servers.is_empty() {
            self.reader.report_unsupported(element, "custom DNS servers are not supported");
        }
        let list = collection_entries(element.find_property("DNSCacheManager.hosts"), "");
        let mut hosts = Vec::new();
        for entry in list {
            let text = |name: &str| nested_text(entry, name).unwrap_or_default().trim();
            hosts.push((
                self.reader.compile_template(element, text("StaticHost.Name")),
                self.reader.compile_template(element, text("StaticHost.Address")),
            ));
        }
        self.reader.report_unread_properties(element);
        self.model.host_addresses.push(hosts);
        self.remember_shared_element(element, self.model.host_addresses.len() - 1)
    }
}

fn check_request<'a>(reader: &mut JmxElementReader, element: &JmxElement<'a>) {
    element.ignore_properties(&HARMLESS_PROPERTIES);
    element.ignore_properties(&GRAPHQL_EDITOR_PROPERTIES);
    for (name, why) in UNSUPPORTED_PROPERTIES {
        if !matches!(element.text_property(name).trim(), "" | "false") {
            let why = format!("property {name} is set; {why}");
            reader.report_unsupported(element, &why);
        }
    }
    let kind = element.text_property("HTTPSampler.ipSourceType").trim();
    if !matches!(kind, "" | "0") {
        reader.report_unsupported(
            element,
            "sending from a device is not supported, only from an address",
        );
    }
    element.ignore_properties(&[
        "HTTPSampler.ipSourceType",
        "HTTPSampler.proxyPort",
        "HTTPSampler.proxyPass",
        "HTTPSampler.proxyScheme",
    ]);
}

/// Returns the first value that is set: the sampler's own, otherwise that of the nearest defaults.
fn first_set_property<'a>(
    reader: &mut JmxElementReader,
    sources: &[&JmxElement<'a>],
    name: &'a str,
) -> TextTemplate {
    let mut first_source = None;
    for source in sources {
        let text = source.text_property(name);
        if first_source.is_none() && !text.is_empty() {
            first_source = Some(*source);
        }
    }
    match first_source {
        Some(source) => reader.compile_property(source, name),
        None => TextTemplate::default(),
    }
}

/// Returns the charset of parameters and bodies: the sampler's own, otherwise that of the nearest defaults.
fn content_charset<'a>(reader: &mut JmxElementReader, sources: &[&JmxElement<'a>]) -> JavaCharset {
    let mut charset = None;
    for source in sources {
        let name = source.text_property("HTTPSampler.contentEncoding").trim();
        if charset.is_none() && !name.is_empty() {
            charset = Some(reader.compile_charset(source, name));
        }
    }
    charset.unwrap_or_default()
}

fn compile_arguments<'a>(
    reader: &mut JmxElementReader,
    element: &JmxElement<'a>,
) -> Vec<HttpArgument> {
    let list =
        collection_entries(element.find_property("HTTPsampler.Arguments"), "Arguments.arguments");
    list.iter()
        .map(|entry| {
            let text = |name: &str| nested_text(*entry, name).unwrap_or_default();
            let has_equals = nested_text(*entry, "HTTPArgument.use_equals") != Some("false");
            let separator = match nested_text(*entry, "Argument.metadata") {
                Some(separator) => separator.to_owned(),
                None if has_equals => "=".to_owned(),
                None => String::new(),
            };
            HttpArgument {
                name: reader.compile_template(element, text("Argument.name")),
                value: reader.compile_template(element, text("Argument.value")),
                needs_encoding: text("HTTPArgument.always_encode") == "true",
                separator,
            }
        })
        .collect()
}

fn compile_file_uploads<'a>(
    reader: &mut JmxElementReader,
    element: &JmxElement<'a>,
) -> Vec<FileUpload> {
    let list = collection_entries(element.find_property("HTTPsampler.Files"), "HTTPFileArgs.files");
    let mut files: Vec<FileUpload> = list
        .iter()
        .map(|entry| {
            let text = |name: &str| nested_text(*entry, name).unwrap_or_default();
            FileUpload {
                path: reader.compile_template(element, text("File.path")),
                name: reader.compile_template(element, text("File.paramname")),
                media_type: reader.compile_template(element, text("File.mimetype")),
            }
        })
        .collect();
    // Plans of JMeter 2 have one file name outside the file list.
    let path = reader.compile_property(element, "HTTPSampler.FILE_NAME");
    if !path.is_empty() {
        let name = reader.compile_property(element, "HTTPSampler.FILE_FIELD");
        let media_type = reader.compile_property(element, "HTTPSampler.mimetype");
        files.push(FileUpload { path, name, media_type });
    }
    element.ignore_properties(&["HTTPSampler.FILE_FIELD", "HTTPSampler.mimetype"]);
    files
}

fn compile_embedded_spec<'a>(
    reader: &mut JmxElementReader,
    sources: &[&JmxElement<'a>],
) -> Option<EmbeddedResourceSpec> {
    let wants = first_set_flag(sources, "HTTPSampler.image_parser");
    let parallel = first_set_flag(sources, "HTTPSampler.concurrentDwn");
    let only = first_set_property(reader, sources, "HTTPSampler.embedded_url_re");
    let except = first_set_property(reader, sources, "HTTPSampler.embedded_url_exclude_re");
    let pool = sources
        .iter()
        .find_map(|source| source.text_property("HTTPSampler.concurrentPool").trim().parse().ok())
        .unwrap_or(6);
    wants.then(|| EmbeddedResourceSpec {
        concurrency: if parallel { pool } else { 1 },
        include_pattern: (!only.is_empty()).then_some(only),
        exclude_pattern: (!except.is_empty()).then_some(except),
    })
}

fn compile_headers<'a>(
    reader: &mut JmxElementReader,
    element: &JmxElement<'a>,
) -> Vec<(TextTemplate, TextTemplate)> {
    let list = collection_entries(element.find_property("HeaderManager.headers"), "");
    let headers = list
        .iter()
        .map(|entry| {
            let text = |name: &str| nested_text(*entry, name).unwrap_or_default();
            (
                reader.compile_template(element, text("Header.name")),
                reader.compile_template(element, text("Header.value")),
            )
        })
        .collect();
    reader.report_unread_properties(element);
    headers
}

fn compile_credentials<'a>(
    reader: &mut JmxElementReader,
    element: &JmxElement<'a>,
) -> Vec<HttpCredentials> {
    element.ignore_properties(&[
        "AuthManager.clearEachIteration",
        "AuthManager.controlledByThreadGroup",
    ]);
    let list = collection_entries(element.find_property("AuthManager.auth_list"), "");
    let mut logins = Vec::new();
    for entry in &list {
        let text = |name: &str| nested_text(*entry, name).unwrap_or_default();
        let mechanism = text("Authorization.mechanism");
        let is_known = matches!(mechanism, "" | "BASIC" | "BASIC_DIGEST" | "DIGEST");
        if !is_known {
            let why =
                format!("authorization by {mechanism} is not supported, only BASIC and DIGEST");
            reader.report_unsupported(element, &why);
        }
        logins.push(HttpCredentials {
            url: reader.compile_template(element, text("Authorization.url")),
            user: reader.compile_template(element, text("Authorization.username")),
            password: reader.compile_template(element, text("Authorization.password")),
            realm: reader.compile_template(element, text("Authorization.realm")),
            is_preemptive_basic: mechanism != "DIGEST",
        });
    }
    reader.report_unread_properties(element);
    logins
}

fn is_http_defaults(element: &JmxElement<'_>) -> bool {
    element.node.attribute("guiclass").is_none_or(|gui| gui.ends_with("HttpDefaultsGui"))
}

/// Returns the flag from the first source that sets it.
fn first_set_flag<'a>(sources: &[&JmxElement<'a>], name: &'a str) -> bool {
    let mut first_flag = None;
    for source in sources {
        let is_set = source.find_property(name).is_some();
        if is_set && first_flag.is_none() {
            first_flag = Some(source.flag_property(name, false));
        }
    }
    first_flag.unwrap_or(false)
}
