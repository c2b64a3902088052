//! The compiled scripts of one state of `/apps` and `/libs`.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use minijinja::{Environment, Template};
use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache;
use tympan_content::{ChunkId, Snapshot, Viewer};
use tympan_htl::{HtlDiagnostic, HtlScript};
use tympan_use_script::UseScript;

use super::declared_url_parts::DeclaredUrlParts;
use super::index::{ScriptIndex, script_folders};
use super::name_match::ScriptCriteria;
use super::platform::add_platform_scripts;
use super::source::{ScriptSet, ScriptSource};
use crate::Result;
use crate::client_library::ClientLibrarySet;
use crate::dependency::content_reader::ContentReader;
use crate::dependency::path_dependency::hash_path_text;
use crate::dynamic_inclusion::{DynamicChildInclusions, DynamicInclusion, parse_child_inclusions};
use crate::fragment::FragmentDirectives;
use crate::i18n::TranslationDictionaries;
use crate::page::container_policy::relative_resource_type;
use crate::render_options::RenderMode;
use crate::script_language::ScriptLanguage;
use crate::template::{ComponentFailure, RewrittenTemplate, analyze_templates};

/// Maximum number of cached resolutions; selectors come from visitors, so their number is unlimited.
const MAX_RESOLUTIONS: usize = 4096;

/// Maximum number of findings that are logged.
const MAX_LOGGED_FINDINGS: usize = 10_000;

/// A script, and the known properties of its text.
#[derive(Debug)]
pub(crate) struct ScriptInfo {
    path: Arc<str>,
    language: ScriptLanguage,
    /// True if it cannot be rendered.
    is_broken: bool,
    /// True if its text includes other scripts.
    imports_scripts: bool,
    /// True if it outputs included components unchanged, so that they can be found in its output.
    has_only_plain_includes: bool,
}

impl ScriptInfo {
    /// Returns the path.
    pub(crate) fn path(&self) -> &Arc<str> {
        &self.path
    }

    /// Returns the language.
    pub(crate) fn language(&self) -> ScriptLanguage {
        self.language
    }

    /// Returns true if it outputs included components unchanged.
    pub(crate) fn has_only_plain_includes(&self) -> bool {
        self.has_only_plain_includes
    }
}

/// The resolution of a script for a resource type and a request.
#[derive(Debug, Clone)]
pub(crate) struct ScriptResolution {
    pub script: Option<Arc<ScriptInfo>>,
    /// Number of leading selectors in the script's file name.
    pub named_selector_count: usize,
    /// The hashes of the folders that were searched.
    pub searched_folders: Arc<[u64]>,
    /// The inclusion of the type, if it is rendered for each visitor.
    pub dynamic: Option<DynamicInclusion>,
}

/// All scripts, compiled, with cached resolutions.
#[derive(Debug)]
pub(crate) struct CompiledScripts {
    index: ScriptIndex,
    environment: Environment<'static>,
    htl_scripts: HashMap<String, CompiledHtl>,
    /// The JavaScripts that HTL scripts use.
    use_scripts: HashMap<String, UseScript>,
    failures: HashMap<String, ComponentFailure>,
    /// The original texts, for excerpts.
    originals: HashMap<String, Arc<RewrittenTemplate>>,
    resolutions: Cache<String, ScriptResolution>,
    /// The folders that are searched for scripts, by type and super type.
    script_folders: Cache<String, Arc<[u64]>>,
    /// Scripts whose text includes other scripts.
    importing_scripts: HashSet<String>,
    /// Scripts that output included components unchanged, so that these can be found in their output.
    plain_include_scripts: HashSet<String>,
    /// The cache directives of folders.
    folder_directives: HashMap<String, Arc<FragmentDirectives>>,
    /// The cached directives of types.
    type_directives: Cache<String, Arc<FragmentDirectives>>,
    never_cached: Arc<FragmentDirectives>,
    /// Distinguishes renderings of these scripts from those of others; empty if new scripts always come with a commit.
    cache_key_mark: String,
    /// Types that are rendered for each visitor, by folder.
    folder_dynamics: HashMap<String, DynamicInclusion>,
    /// The cached inclusions of types.
    type_dynamics: Cache<String, Option<DynamicInclusion>>,
    /// The inclusions that types declare for their children, by folder.
    dynamic_children: HashMap<String, Arc<DynamicChildInclusions>>,
    /// The URL parts that types declare, by folder.
    declared_url_parts: BTreeMap<String, DeclaredUrlParts>,
    client_libraries: ClientLibrarySet,
    dictionaries: TranslationDictionaries,
}

/// A compiled HTL script with its source.
#[derive(Debug, Clone)]
pub(crate) struct CompiledHtl {
    pub script: HtlScript,
    pub source: Arc<str>,
}

/// The compiled HTL scripts of the latest state: a script that did not change is not compiled again.
pub(crate) type HtlScriptCache = Mutex<HashMap<String, CompiledHtl>>;

/// Compiles the HTL scripts of a set, except those that the cache has with the same source.
fn compile_htl_scripts(
    set: &mut ScriptSet,
    cache: &HtlScriptCache,
) -> (HashMap<String, CompiledHtl>, Vec<(String, ComponentFailure)>) {
    let is_htl = |path: &str| ScriptLanguage::from_file_name(path) == Some(ScriptLanguage::Htl);
    let paths: Vec<String> = set.scripts.keys().filter(|path| is_htl(path)).cloned().collect();
    let mut compiled = HashMap::new();
    let mut failures = Vec::new();
    let mut cache = cache.lock();
    for path in paths {
        let Some(source) = set.scripts.remove(&path) else { continue };
        if let Some(known) = cache.get(&path).filter(|known| *known.source == *source) {
            compiled.insert(path, known.clone());
            continue;
        }
        match HtlScript::compile(&path, &source) {
            Ok(script) => {
                compiled.insert(path, CompiledHtl { script, source: source.into() });
            }
            Err(error) => {
                let failure = ComponentFailure::HtlRefused(Arc::new(error), source.into());
                failures.push((path, failure));
            }
        }
    }
    cache.clone_from(&compiled);
    (compiled, failures)
}

/// Parses a component's `dynamic` property; `None` with a warning if it is invalid.
fn parse_dynamic(folder: &str, text: &str) -> Option<(String, DynamicInclusion)> {
    let dynamic = DynamicInclusion::parse(text);
    if dynamic.is_none() {
        tracing::warn!(path = %folder, reason = %text, "invalid `dynamic` property of a component");
    }
    Some((folder.to_owned(), dynamic?))
}

impl CompiledScripts {
    /// Compiles a set; a script that does not compile is stored with its error.
    pub(crate) fn compile(
        mut set: ScriptSet,
        mut environment: Environment<'static>,
        htl_cache: &HtlScriptCache,
        mode: RenderMode,
    ) -> Self {
        let mut index = ScriptIndex::default();
        let mut broken = HashMap::new();
        for (folder, super_type) in &set.super_types {
            index.set_super_type(folder, super_type);
        }
        let mut takers = HashSet::new();
        let dynamics =
            set.dynamic_settings.iter().filter_map(|(folder, text)| parse_dynamic(folder, text));
        let dynamics = dynamics.collect();
        let dynamic_children = set.dynamic_children.iter().map(|(folder, entries)| {
            let (children, odd) = parse_child_inclusions(entries);
            if !odd.is_empty() {
                tracing::warn!(path = %folder, reason = ?odd, "invalid `dynamicChildren` property of a \
                    component");
            }
            (folder.clone(), Arc::new(children))
        });
        let dynamic_children = dynamic_children.collect();
        let caches = set
            .cache_directives
            .iter()
            .map(|(folder, text)| (folder.clone(), parse_directives(folder, text)));
        let caches = caches.collect();
        for path in set.scripts.keys() {
            index.add(path);
        }
        let (htl_scripts, htl_failures) = compile_htl_scripts(&mut set, htl_cache);
        broken.extend(htl_failures);
        for (path, text) in &set.scripts {
            if imports_scripts(text) {
                takers.insert(path.clone());
            }
        }
        let mut plain = HashSet::new();
        let mut origins = HashMap::new();
        for (name, analysis) in analyze_templates(&set.scripts) {
            match analysis {
                Ok(rewritten) => {
                    let rewritten = Arc::new(rewritten);
                    if has_only_plain_includes(&rewritten.compiled_text) {
                        plain.insert(name.clone());
                    }
                    let added = environment
                        .add_template_owned(name.clone(), rewritten.compiled_text.clone());
                    if let Err(error) = added {
                        let origin = Some(Arc::clone(&rewritten));
                        broken.insert(
                            name.clone(),
                            ComponentFailure::TemplateError(Arc::new(error), origin),
                        );
                    }
                    origins.insert(name, rewritten);
                }
                Err(refusal) => {
                    let text = set.scripts.get(&refusal.template).map_or("", String::as_str);
                    broken.insert(
                        name,
                        ComponentFailure::TemplateRefused(Arc::new(refusal), text.into()),
                    );
                }
            }
        }
        let libraries = ClientLibrarySet::build(&set.client_libraries, mode);
        let dictionaries = TranslationDictionaries::new(set.messages);
        let use_scripts = set.use_scripts.into_iter().map(|(path, source)| {
            let script = UseScript { path: path.as_str().into(), source: source.into() };
            (path, script)
        });
        let use_scripts = use_scripts.collect();
        for (path, text) in set.scripts {
            if origins.contains_key(&path) || broken.contains_key(&path) {
                continue;
            }
            // The analysis could not parse it; the compiler reports the reason.
            if let Err(error) = environment.add_template_owned(path.clone(), text) {
                broken.insert(path, ComponentFailure::TemplateError(Arc::new(error), None));
            }
        }
        let (resolutions, folder_cache) =
            (Cache::new(MAX_RESOLUTIONS), Cache::new(MAX_RESOLUTIONS));
        let (directives, never) =
            (Cache::new(MAX_RESOLUTIONS), Arc::new(FragmentDirectives::never()));
        Self {
            index,
            environment,
            htl_scripts,
            use_scripts,
            failures: broken,
            originals: origins,
            resolutions,
            script_folders: folder_cache,
            importing_scripts: takers,
            plain_include_scripts: plain,
            folder_directives: caches,
            type_directives: directives,
            never_cached: never,
            cache_key_mark: String::new(),
            folder_dynamics: dynamics,
            type_dynamics: Cache::new(MAX_RESOLUTIONS),
            dynamic_children,
            declared_url_parts: set.declared_url_parts,
            client_libraries: libraries,
            dictionaries,
        }
    }

    /// Returns the URL parts that a type and its super types declare.
    pub(crate) fn declared_url_parts(
        &self,
        resource_type: &str,
        super_type: Option<&str>,
    ) -> Vec<&DeclaredUrlParts> {
        if self.declared_url_parts.is_empty() {
            return Vec::new();
        }
        let chain = self.index.super_type_chain(resource_type, super_type);
        let folders = chain.iter().flat_map(|chain_type| script_folders(chain_type));
        folders.filter_map(|folder| self.declared_url_parts.get(&folder)).collect()
    }

    /// Returns the client libraries.
    pub(crate) fn client_libraries(&self) -> &ClientLibrarySet {
        &self.client_libraries
    }

    /// Returns the translations of component texts.
    pub(crate) fn dictionaries(&self) -> &TranslationDictionaries {
        &self.dictionaries
    }

    /// Returns the inclusion of a type, or of the nearest super type that declares one.
    fn dynamic_of(
        &self,
        resource_type: &str,
        super_type: Option<&str>,
    ) -> Option<DynamicInclusion> {
        if self.folder_dynamics.is_empty() {
            return None;
        }
        let key = match super_type {
            None => Cow::Borrowed(resource_type),
            Some(super_type) => Cow::Owned(format!("{resource_type}\0{super_type}")),
        };
        if let Some(cached_dynamic) = self.type_dynamics.get(&*key) {
            return cached_dynamic;
        }
        let chain = self.index.super_type_chain(resource_type, super_type);
        let mut folders = chain.iter().flat_map(|chain_type| script_folders(chain_type));
        let dynamic = folders.find_map(|folder| self.folder_dynamics.get(&folder).copied());
        self.type_dynamics.insert(key.into_owned(), dynamic);
        dynamic
    }

    /// Returns true if any component declares inclusions for its children.
    pub(crate) fn has_dynamic_children(&self) -> bool {
        !self.dynamic_children.is_empty()
    }

    /// Returns the inclusions for children of a type, or of the nearest super type that declares some.
    pub(crate) fn dynamic_children(
        &self,
        resource_type: &str,
        super_type: Option<&str>,
    ) -> Option<Arc<DynamicChildInclusions>> {
        let chain = self.index.super_type_chain(resource_type, super_type);
        let mut folders = chain.iter().flat_map(|chain_type| script_folders(chain_type));
        folders.find_map(|folder| self.dynamic_children.get(&folder)).cloned()
    }

    /// Returns true if any component may declare that a type is rendered for each visitor.
    fn is_dynamic_child(&self, resource_type: &str) -> bool {
        let kind = relative_resource_type(resource_type);
        self.dynamic_children.values().any(|children| children.contains_key(kind))
    }

    /// Finds the script for a resource type, and records the searched folders: a script that appears there later may
    /// replace it.
    pub(crate) fn find_script(
        &self,
        reader: &ContentReader,
        (resource_type, super_type): (&str, Option<&str>),
        criteria: &ScriptCriteria<'_>,
    ) -> Option<Arc<ScriptInfo>> {
        let ScriptResolution { script, searched_folders, .. } =
            self.resolve_script((resource_type, super_type), criteria);
        reader.record_script_folders(searched_folders);
        script
    }

    /// Finds the script for a resource type, and the searched folders, which the caller records.
    pub(crate) fn resolve_script(
        &self,
        (resource_type, super_type): (&str, Option<&str>),
        criteria: &ScriptCriteria<'_>,
    ) -> ScriptResolution {
        let key = resolution_key(resource_type, super_type, criteria);
        self.resolutions.get(&key).unwrap_or_else(|| {
            let script = self.index.find_script(resource_type, super_type, criteria);
            let named_selectors = script.as_ref().map_or(0, |(fit, _)| fit.selector_count);
            let script = script.map(|(_, path)| self.script_info(&path));
            let folders = self.script_folders(resource_type, super_type);
            let dynamic = self.dynamic_of(resource_type, super_type);
            let resolution = ScriptResolution {
                script,
                named_selector_count: named_selectors,
                searched_folders: folders,
                dynamic,
            };
            self.resolutions.insert(key, resolution.clone());
            resolution
        })
    }

    /// Collects the known properties of a script.
    fn script_info(&self, path: &str) -> Arc<ScriptInfo> {
        Arc::new(ScriptInfo {
            path: path.into(),
            language: ScriptLanguage::from_file_name(path).unwrap_or(ScriptLanguage::MiniJinja),
            is_broken: self.failures.contains_key(path),
            imports_scripts: self.importing_scripts.contains(path),
            has_only_plain_includes: self.plain_include_scripts.contains(path),
        })
    }

    /// Records the folders that are searched for scripts of a type.
    pub(crate) fn record_script_folders(
        &self,
        reader: &ContentReader,
        resource_type: &str,
        super_type: Option<&str>,
    ) {
        reader.record_script_folders(self.script_folders(resource_type, super_type));
    }

    /// Returns the hashes of the folders that are searched for scripts of a type.
    fn script_folders(&self, resource_type: &str, super_type: Option<&str>) -> Arc<[u64]> {
        let key = match super_type {
            None => Cow::Borrowed(resource_type),
            Some(super_type) => Cow::Owned(format!("{resource_type}\0{super_type}")),
        };
        self.script_folders.get(&*key).unwrap_or_else(|| {
            let chain = self.index.super_type_chain(resource_type, super_type);
            let folders = chain.iter().flat_map(|chain_type| script_folders(chain_type));
            let folder_hashes: Arc<[u64]> = folders.map(|folder| hash_path_text(&folder)).collect();
            self.script_folders.insert(key.into_owned(), Arc::clone(&folder_hashes));
            folder_hashes
        })
    }

    /// Returns the mark that distinguishes cached renderings of these scripts from those of others, if nothing else
    /// does.
    pub(crate) fn cache_key_mark(&self) -> &str {
        &self.cache_key_mark
    }

    /// Returns true if any component is cached.
    pub(crate) fn has_cached_components(&self) -> bool {
        !self.folder_directives.is_empty()
    }

    /// Returns the cache directives of a type: those of the nearest folder at or above it, or above a super type.
    pub(crate) fn directives_of(
        &self,
        resource_type: &str,
        super_type: Option<&str>,
    ) -> Arc<FragmentDirectives> {
        if self.folder_directives.is_empty() {
            return Arc::clone(&self.never_cached);
        }
        let key = format!("{resource_type}\0{}", super_type.unwrap_or_default());
        if let Some(cached_directives) = self.type_directives.get(&key) {
            return cached_directives;
        }
        // The placeholder of a dynamic component is recorded in each response of its page.
        if self.dynamic_of(resource_type, super_type).is_some()
            || self.is_dynamic_child(resource_type)
        {
            return Arc::clone(&self.never_cached);
        }
        let chain = self.index.super_type_chain(resource_type, super_type);
        let folders = chain.iter().flat_map(|chain_type| script_folders(chain_type));
        let directives = folders.into_iter().find_map(|folder| {
            let above = std::iter::successors(Some(folder.as_str()), |path| {
                path.rsplit_once('/').map(|(above, _)| above)
            });
            above.into_iter().find_map(|path| self.folder_directives.get(path))
        });
        let directives = Arc::clone(directives.unwrap_or(&self.never_cached));
        self.type_directives.insert(key, Arc::clone(&directives));
        directives
    }

    /// Records that a script is run, and the scripts that it depends on.
    pub(crate) fn record_script_use(&self, reader: &ContentReader, script: &ScriptInfo) {
        reader.record_script(&script.path);
        if script.imports_scripts {
            reader.record_any_script();
        }
    }

    /// Finds the script that renders an error.
    pub(crate) fn find_error_handler(
        &self,
        name: &str,
        criteria: &ScriptCriteria<'_>,
    ) -> Option<Arc<ScriptInfo>> {
        self.index.find_error_handler(name, criteria).map(|path| self.script_info(&path))
    }

    /// Returns a compiled script.
    ///
    /// # Errors
    /// The failure of a script that does not compile.
    pub(crate) fn template(
        &self,
        script: &ScriptInfo,
    ) -> Result<Template<'_, '_>, ComponentFailure> {
        let failure = if script.is_broken { self.failures.get(&*script.path) } else { None };
        match failure {
            Some(failure) => Err(failure.clone()),
            None => self
                .environment
                .get_template(&script.path)
                .map_err(|error| ComponentFailure::TemplateError(Arc::new(error), None)),
        }
    }

    /// Returns a compiled HTL script.
    ///
    /// # Errors
    /// The failure of a script that does not compile.
    pub(crate) fn htl_script(&self, path: &str) -> Result<&CompiledHtl, ComponentFailure> {
        match (self.htl_scripts.get(path), self.failures.get(path)) {
            (Some(script), _) => Ok(script),
            (None, Some(failure)) => Err(failure.clone()),
            (None, None) => Err(ComponentFailure::NoNamedScript(path.to_owned())),
        }
    }

    /// Finds a script that another one names: an absolute path, or a path relative to the folders of the resource's
    /// type and its super types, to those of the naming script and its super types, or to the search paths. Records
    /// the searched folders.
    pub(crate) fn find_named_script(
        &self,
        reader: &ContentReader,
        types: (&str, Option<&str>),
        naming_script: &str,
        name: &str,
    ) -> Option<Arc<ScriptInfo>> {
        let path =
            self.find_named_path(reader, types, naming_script, name, |path| self.has_script(path));
        path.map(|path| self.script_info(&path))
    }

    /// Finds a JavaScript that another script names, as [`CompiledScripts::find_named_script`] does, and records it.
    pub(crate) fn find_use_script(
        &self,
        reader: &ContentReader,
        types: (&str, Option<&str>),
        naming_script: &str,
        name: &str,
    ) -> Option<&UseScript> {
        let exists = |path: &str| self.use_scripts.contains_key(path);
        let path = self.find_named_path(reader, types, naming_script, name, exists)?;
        let script = self.use_scripts.get(&path)?;
        reader.record_script(&script.path);
        Some(script)
    }

    /// Returns the text of a JavaScript.
    pub(crate) fn use_script_source(&self, path: &str) -> Option<Arc<str>> {
        self.use_scripts.get(path).map(|script| Arc::clone(&script.source))
    }

    /// Finds the path of a script that another one names, and records the searched folders.
    fn find_named_path(
        &self,
        reader: &ContentReader,
        (resource_type, super_type): (&str, Option<&str>),
        naming_script: &str,
        name: &str,
        exists: impl Fn(&str) -> bool,
    ) -> Option<String> {
        if name.starts_with('/') {
            let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
            self.record_script_folders(reader, folder, None);
            // A script of `/libs` is replaced by the one with the same path below `/apps`.
            let relative = relative_resource_type(name);
            let overlaid = script_folders(relative).into_iter().find(|path| exists(path));
            return if exists(name) { Some(name.to_owned()) } else { overlaid };
        }
        let naming_folder = naming_script.rsplit_once('/').map_or("", |(folder, _)| folder);
        let naming_type = relative_resource_type(naming_folder);
        self.record_script_folders(reader, resource_type, super_type);
        self.record_script_folders(reader, naming_type, None);
        let types = self
            .index
            .super_type_chain(resource_type, super_type)
            .into_iter()
            .chain(self.index.super_type_chain(naming_type, None));
        let in_types = types
            .flat_map(|folder_type| script_folders(&folder_type))
            .filter_map(|folder| resolve_script_path(&folder, name))
            .find(|path| exists(path));
        let in_search_paths = || {
            let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
            self.record_script_folders(reader, folder, None);
            script_folders(name).into_iter().find(|path| exists(path))
        };
        in_types.or_else(in_search_paths)
    }

    /// Returns true if there is a script at a path.
    fn has_script(&self, path: &str) -> bool {
        self.htl_scripts.contains_key(path)
            || self.failures.contains_key(path)
            || self.environment.get_template(path).is_ok()
    }

    /// Returns a type and its super types, nearest first.
    pub(crate) fn super_types(&self, resource_type: &str) -> Vec<String> {
        let mut chain = self.index.super_type_chain(resource_type, None);
        chain.pop();
        chain
    }

    /// Returns the faults of all HTL scripts, and their warnings (true).
    pub(crate) fn htl_diagnostics(&self) -> impl Iterator<Item = (&HtlDiagnostic, bool)> {
        let refusals = self.failures.values().filter_map(|failure| match failure {
            ComponentFailure::HtlRefused(error, _) => Some(error.faults()),
            _ => None,
        });
        let warnings = self.htl_scripts.values().map(|compiled| compiled.script.warnings());
        refusals
            .flatten()
            .map(|fault| (fault, false))
            .chain(warnings.flatten().map(|warning| (warning, true)))
    }

    /// Returns the failures of scripts that cannot be rendered, sorted by path.
    pub(crate) fn script_failures(&self) -> Vec<(&str, &ComponentFailure)> {
        let mut faults: Vec<_> =
            self.failures.iter().map(|(path, failure)| (path.as_str(), failure)).collect();
        faults.sort_by_key(|(path, _)| *path);
        faults
    }

    /// Returns the original text of a script.
    pub(crate) fn original_text(&self, name: &str) -> Option<Arc<RewrittenTemplate>> {
        self.originals.get(name).cloned()
    }
}

/// Returns true if a template outputs all included components in place and unchanged: never compared, filtered or
/// captured.
fn has_only_plain_includes(text: &str) -> bool {
    let is_free = text.split("{%").skip(1).all(|tag| {
        let tag = tag.split("%}").next().unwrap_or_default();
        let keyword =
            tag.trim_start_matches(['-', '+']).split_whitespace().next().unwrap_or_default();
        let captures = match keyword {
            "include" | "import" | "from" | "extends" | "filter" | "macro" | "call" => true,
            "set" => !tag.contains('='),
            _ => false,
        };
        !captures && !tag.contains("include")
    });
    is_free
        && text.split("{{").skip(1).all(|output| {
            let output = output.split("}}").next().unwrap_or_default();
            !output.contains("include") || is_plain_include(output)
        })
}

/// Returns true if an output is exactly one include call.
fn is_plain_include(output: &str) -> bool {
    let output = output.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
    let calls = ["include_children", "include"];
    let called = calls.iter().find_map(|call| output.strip_prefix(call));
    let Some(arguments) = called.and_then(|rest| rest.trim_start().strip_prefix('(')) else {
        return false;
    };
    let (mut depth, mut quote, mut rest) = (1_usize, None, arguments.char_indices());
    let end = rest.find_map(|(at, character)| {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(character),
            (None, '(') => depth += 1,
            (None, ')') => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at + 1)
    });
    end == Some(arguments.len()) && !arguments.contains("include")
}

/// Returns true if a template contains a tag that may include others.
fn imports_scripts(text: &str) -> bool {
    let tags = text.split("{%").skip(1);
    let words = tags.map(|tag| tag.trim_start_matches(['-', '+']).split_whitespace().next());
    let is_taking = |keyword: &str| matches!(keyword, "include" | "import" | "from" | "extends");
    words.flatten().any(is_taking)
}

/// Resolves a relative script name against a folder; `None` if it leaves the root.
fn resolve_script_path(folder: &str, name: &str) -> Option<String> {
    let mut names: Vec<&str> = folder.split('/').filter(|name| !name.is_empty()).collect();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(names.pop()?),
            part => names.push(part),
        }
    }
    Some(format!("/{}", names.join("/")))
}

/// Parses the directives of a folder; invalid ones count as `never`.
fn parse_directives(folder: &str, text: &str) -> Arc<FragmentDirectives> {
    Arc::new(FragmentDirectives::parse(text).unwrap_or_else(|mistake| {
        tracing::warn!(path = folder, reason = mistake, "invalid `cache` property of a component");
        FragmentDirectives::malformed()
    }))
}

/// Joins the inputs of a resolution with a separator that occurs in none of them.
fn resolution_key(
    resource_type: &str,
    super_type: Option<&str>,
    criteria: &ScriptCriteria<'_>,
) -> String {
    let mut key = String::with_capacity(resource_type.len() + 48);
    key.push_str(resource_type);
    let rest =
        [super_type.unwrap_or_default(), criteria.method, criteria.extension.unwrap_or_default()];
    for part in rest.into_iter().chain(criteria.selectors.iter().map(String::as_str)) {
        key.push('\0');
        key.push_str(part);
    }
    key
}

/// Caches the compiled scripts until their source changes.
#[derive(Debug)]
pub(crate) struct ScriptCache {
    source: Box<dyn ScriptSource>,
    environment: Environment<'static>,
    mode: RenderMode,
    current: RwLock<Option<CachedScripts>>,
    htl_cache: HtlScriptCache,
    /// The findings that were logged since the start.
    logged_findings: Mutex<HashSet<String>>,
}

#[derive(Debug)]
struct CachedScripts {
    /// The root at the last comparison of states; `None` for sources that change without a commit.
    root: Option<ChunkId>,
    state_hash: u64,
    scripts: Arc<CompiledScripts>,
}

impl ScriptCache {
    /// Compiles the scripts of a source for authors or for visitors.
    pub(crate) fn new(
        source: Box<dyn ScriptSource>,
        environment: Environment<'static>,
        mode: RenderMode,
    ) -> Self {
        Self {
            source,
            environment,
            mode,
            current: RwLock::new(None),
            htl_cache: Mutex::default(),
            logged_findings: Mutex::default(),
        }
    }

    /// Returns true if a finding was not logged before, unless too many were.
    pub(crate) fn claim_finding(&self, finding: &str) -> bool {
        let mut logged = self.logged_findings.lock();
        logged.len() < MAX_LOGGED_FINDINGS && logged.insert(finding.to_owned())
    }

    /// Returns the source.
    pub(crate) fn source(&self) -> &dyn ScriptSource {
        &*self.source
    }

    /// Returns the scripts of a snapshot, compiling them if they changed. Scripts are part of the program, independent
    /// of the snapshot's viewer.
    pub(crate) fn scripts_at(&self, snapshot: &Snapshot) -> Result<Arc<CompiledScripts>> {
        let snapshot = &snapshot.as_viewer(&Viewer::system());
        let root = (!self.source.is_live()).then(|| snapshot.root_id());
        if let Some(newest) = &*self.current.read()
            && root.is_some()
            && newest.root == root
        {
            return Ok(Arc::clone(&newest.scripts));
        }
        let state = self.source.state_hash(snapshot)?;
        let mut newest = self.current.write();
        let scripts = match newest.as_ref().filter(|newest| newest.state_hash == state) {
            Some(current) => Arc::clone(&current.scripts),
            None => {
                let mut set = self.source.load_scripts(snapshot)?;
                add_platform_scripts(&mut set);
                let environment = self.environment.clone();
                let scripts =
                    CompiledScripts::compile(set, environment, &self.htl_cache, self.mode);
                for fault in scripts.client_libraries.faults() {
                    tracing::warn!(
                        file = fault.path,
                        line = fault.line,
                        reason = fault.reason,
                        "cannot compile a style sheet"
                    );
                }
                let mark = if root.is_none() { format!("\0{state:x}") } else { String::new() };
                Arc::new(CompiledScripts { cache_key_mark: mark, ..scripts })
            }
        };
        *newest = Some(CachedScripts { root, state_hash: state, scripts: Arc::clone(&scripts) });
        Ok(scripts)
    }
}
