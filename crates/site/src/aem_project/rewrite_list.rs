//! What must be written anew: Java classes that scripts use, scripts in other languages, and the code of bundles.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tympan_htl::HtlScript;
use tympan_render::{check_scripts, is_native_class};

use super::bundle::Bundle;
use super::package_contents::PackageContents;

/// What must be written anew.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RewriteList {
    /// The Java classes that scripts use and this program does not have, by name.
    pub classes: Vec<RewriteClass>,
    /// Scripts in JSP, ESP and server-side JavaScript without HTL.
    pub scripts: Vec<String>,
    /// The bundles, with the components that they declare.
    pub bundles: Vec<Bundle>,
    /// Faults of scripts and style sheets, as `file:line:column: message`.
    pub faults: Vec<String>,
}

/// A Java class that scripts use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RewriteClass {
    /// The name of the class.
    pub name: String,
    /// The bundle that contains it, if one was found.
    pub bundle: Option<String>,
    /// The properties that scripts read from its objects.
    pub members: BTreeSet<String>,
    /// The scripts that use it.
    pub uses: Vec<RewriteUse>,
}

/// A script that uses a class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RewriteUse {
    /// The path of the script.
    pub script: String,
    /// The line of the `data-sly-use`.
    pub line: u32,
    /// The properties that the script reads.
    pub members: BTreeSet<String>,
    /// True if the script also gives the object to a template, which may read more.
    pub is_passed_on: bool,
}

/// The result of reading all scripts.
pub(super) struct ScriptFacts {
    pub(super) rewrites: RewriteList,
    /// The number of classes that scripts use and this program has.
    pub(super) native_classes: usize,
}

/// Lists what must be written anew.
pub(super) fn list_rewrites(contents: &mut PackageContents) -> ScriptFacts {
    let mut classes: BTreeMap<String, Vec<RewriteUse>> = BTreeMap::new();
    let mut native = BTreeSet::new();
    for (path, text) in &contents.scripts.scripts {
        // A script with faults is listed below.
        let Ok(script) = HtlScript::compile(path, text) else { continue };
        for found in script.uses() {
            let Some(name) = found.target.filter(|name| is_class_name(name)) else { continue };
            if is_native_class(&name) {
                native.insert(name);
                continue;
            }
            classes.entry(name).or_default().push(RewriteUse {
                script: path.clone(),
                line: found.place.line,
                members: found.members,
                is_passed_on: found.is_passed_on,
            });
        }
    }
    let bundles = std::mem::take(&mut contents.bundles);
    let bundle_of = |class: &str| {
        let bundle = bundles.iter().find(|bundle| bundle.classes.contains(class))?;
        Some(format!("{} {}", bundle.name, bundle.version).trim_end().to_owned())
    };
    let classes = classes.into_iter().map(|(name, uses)| RewriteClass {
        bundle: bundle_of(&name),
        members: uses.iter().flat_map(|used| used.members.iter().cloned()).collect(),
        name,
        uses,
    });
    let rewrites = RewriteList {
        classes: classes.collect(),
        scripts: std::mem::take(&mut contents.foreign_scripts).into_iter().collect(),
        faults: check_scripts(&contents.scripts).iter().map(ToString::to_string).collect(),
        bundles,
    };
    ScriptFacts { rewrites, native_classes: native.len() }
}

/// Returns true if `data-sly-use` names a class and not a script.
fn is_class_name(name: &str) -> bool {
    let is_script = name.ends_with(".html") || name.ends_with(".js") || name.contains('/');
    !is_script && name.chars().all(|letter| letter.is_alphanumeric() || "._$".contains(letter))
}
