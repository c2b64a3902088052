//! Selects the script for a resource type: all scripts of all types, ranked for a request.
//!
//! The index is pure: it knows paths, not texts. The loader of scripts fills it.

use std::collections::HashMap;

use super::name_match::{ScriptCriteria, ScriptMatch, match_script_name};

/// Search paths of relative resource types, in order of precedence.
pub(crate) const SCRIPT_SEARCH_PATHS: [&str; 2] = ["/apps/", "/libs/"];

/// The type at the end of every chain of super types.
const DEFAULT_RESOURCE_TYPE: &str = "sling/servlet/default";

/// The folder of the scripts that render errors.
pub(crate) const ERROR_HANDLER_TYPE: &str = "sling/servlet/errorhandler";

/// Maximum length of a chain of super types; a longer one is a mistake.
const MAX_SUPER_TYPE_CHAIN: usize = 32;

/// All scripts below the search paths, by the folder of their resource type.
#[derive(Debug, Default)]
pub(crate) struct ScriptIndex {
    /// Script paths below each folder that holds any, at any depth, relative to that folder.
    scripts: HashMap<String, Vec<String>>,
    /// The `sling:resourceSuperType` of folders that have one.
    super_types: HashMap<String, String>,
}

impl ScriptIndex {
    /// Adds a script by its absolute path.
    ///
    /// A script in `/apps/a/b/print/` may belong to the type `a/b` (as `print/…`) or to the type `a/b/print`: it is
    /// listed below all its ancestor folders.
    pub(crate) fn add(&mut self, path: &str) {
        let slashes: Vec<usize> = path.match_indices('/').map(|(at, _)| at).collect();
        for at in slashes.into_iter().skip(1).rev().take(1 + MAX_SELECTOR_FOLDERS) {
            let (folder, relative) = path.split_at(at);
            let relative = relative.trim_start_matches('/').to_owned();
            self.scripts.entry(folder.to_owned()).or_default().push(relative);
        }
    }

    /// Records the super type of the type at a folder.
    pub(crate) fn set_super_type(&mut self, folder: &str, super_type: &str) {
        self.super_types.insert(folder.to_owned(), super_type.to_owned());
    }

    /// Finds the best script for a resource type; returns its match and its path.
    ///
    /// `super_type` is the resource's own `sling:resourceSuperType`, which takes precedence over that of its type.
    pub(crate) fn find_script(
        &self,
        resource_type: &str,
        super_type: Option<&str>,
        criteria: &ScriptCriteria<'_>,
    ) -> Option<(ScriptMatch, String)> {
        let mut best: Option<(ScriptMatch, String)> = None;
        for chain_type in self.super_type_chain(resource_type, super_type) {
            let label = chain_type.rsplit('/').next().unwrap_or_default();
            for folder in script_folders(&chain_type) {
                if let Some((fit, path)) = self.best_script_in(&folder, label, criteria)
                    && best.as_ref().is_none_or(|(best_match, _)| fit > *best_match)
                {
                    best = Some((fit, path));
                }
            }
        }
        best
    }

    /// Finds the script that renders an error: by its name (`404`), or else `default`.
    pub(crate) fn find_error_handler(
        &self,
        name: &str,
        criteria: &ScriptCriteria<'_>,
    ) -> Option<String> {
        let in_folder = |label: &str| {
            script_folders(ERROR_HANDLER_TYPE)
                .into_iter()
                .find_map(|folder| self.best_script_in(&folder, label, criteria))
        };
        in_folder(name).or_else(|| in_folder("default")).map(|(_, path)| path)
    }

    /// Finds the best script in one folder.
    fn best_script_in(
        &self,
        folder: &str,
        label: &str,
        criteria: &ScriptCriteria<'_>,
    ) -> Option<(ScriptMatch, String)> {
        let fits = self.scripts.get(folder)?.iter();
        let best = fits
            .filter_map(|relative| Some((match_script_name(relative, label, criteria)?, relative)))
            .max_by(|(left, name), (right, other_name)| {
                left.cmp(right).then(other_name.cmp(name))
            })?;
        Some((best.0, format!("{folder}/{}", best.1)))
    }

    /// Returns the type and its super types, nearest first, ending with the default type.
    pub(crate) fn super_type_chain(
        &self,
        resource_type: &str,
        super_type: Option<&str>,
    ) -> Vec<String> {
        let mut chain = vec![resource_type_path(resource_type)];
        let mut next = super_type
            .map(resource_type_path)
            .or_else(|| self.super_type_of(&resource_type_path(resource_type)));
        while let Some(chain_type) = next
            .filter(|chain_type| chain.len() < MAX_SUPER_TYPE_CHAIN && !chain.contains(chain_type))
        {
            next = self.super_type_of(&chain_type);
            chain.push(chain_type);
        }
        chain.push(DEFAULT_RESOURCE_TYPE.to_owned());
        chain
    }

    /// Returns the super type that a type's own node names.
    fn super_type_of(&self, type_path: &str) -> Option<String> {
        script_folders(type_path)
            .iter()
            .find_map(|folder| self.super_types.get(folder))
            .map(|name| resource_type_path(name))
    }
}

/// Maximum depth of selector folders below a type.
const MAX_SELECTOR_FOLDERS: usize = 4;

/// Converts a type such as `nt:file` to the path of its scripts, `nt/file`.
fn resource_type_path(resource_type: &str) -> String {
    resource_type.replace(':', "/").trim_end_matches('/').to_owned()
}

/// Returns the possible folders of a type's scripts: one for an absolute type, else one per search path.
pub(crate) fn script_folders(type_path: &str) -> Vec<String> {
    if type_path.starts_with('/') {
        return vec![type_path.to_owned()];
    }
    SCRIPT_SEARCH_PATHS.iter().map(|search| format!("{search}{type_path}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> ScriptIndex {
        let mut index = ScriptIndex::default();
        for path in [
            "/apps/site/page/page.html.j2",
            "/apps/site/page/print.html.j2",
            "/apps/site/title/title.html.j2",
            "/libs/site/title/title.html.j2",
            "/libs/site/title/large.html.j2",
            "/libs/base/page/page.html.j2",
            "/libs/base/page/page.json.j2",
            "/libs/base/page/print/a4.html.j2",
            "/apps/nt/file/file.html.j2",
            "/apps/sling/servlet/default/default.txt.j2",
            "/apps/sling/servlet/errorhandler/404.html.j2",
            "/libs/sling/servlet/errorhandler/default.html.j2",
        ] {
            index.add(path);
        }
        index.set_super_type("/apps/site/page", "base/page");
        index.set_super_type("/libs/base/page", "site/page");
        index
    }

    #[track_caller]
    fn check(resource_type: &str, super_type: Option<&str>, request: &str, expected: &str) {
        let mut selectors = crate::url::split_selectors(request);
        let extension = selectors.pop();
        let criteria = ScriptCriteria {
            method: "GET",
            selectors: &selectors,
            extension: extension.as_deref(),
        };
        let script = index().find_script(resource_type, super_type, &criteria);
        assert_eq!(script.as_ref().map_or("-", |(_, path)| path.as_str()), expected);
    }

    #[test]
    fn nearer_types_and_earlier_search_paths_win_among_equals() {
        check("site/page", None, "html", "/apps/site/page/page.html.j2");
        check("site/page", None, "print.html", "/apps/site/page/print.html.j2");
        check("site/page", None, "other.html", "/apps/site/page/page.html.j2");
        check("site/title", None, "html", "/apps/site/title/title.html.j2");
        check("/libs/site/title", None, "html", "/libs/site/title/title.html.j2");
    }

    #[test]
    fn more_selectors_beat_a_nearer_type() {
        check("site/page", None, "print.a4.html", "/libs/base/page/print/a4.html.j2");
        check("site/title", None, "large.html", "/libs/site/title/large.html.j2");
    }

    #[test]
    fn super_types_inherit_and_a_cycle_ends() {
        check("site/page", None, "json", "/libs/base/page/page.json.j2");
        check("no/such", Some("base/page"), "json", "/libs/base/page/page.json.j2");
        check("no/such", None, "html", "-");
        check("no/such", None, "txt", "/apps/sling/servlet/default/default.txt.j2");
        check("nt:file", None, "html", "/apps/nt/file/file.html.j2");
        assert_eq!(
            index().super_type_chain("site/page", None),
            ["site/page", "base/page", DEFAULT_RESOURCE_TYPE]
        );
    }

    #[test]
    fn finds_error_handlers() {
        let criteria = ScriptCriteria { method: "GET", selectors: &[], extension: Some("html") };
        let find = |name| index().find_error_handler(name, &criteria).unwrap();
        assert_eq!(find("404"), "/apps/sling/servlet/errorhandler/404.html.j2");
        assert_eq!(find("500"), "/libs/sling/servlet/errorhandler/default.html.j2");
    }
}
