//! The report about a project, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tympan_render::is_platform_type;

use super::bundle::Bundle;
use super::left_out_file::LeftOutFile;
use super::package_contents::PackageContents;
use super::rewrite_list::{RewriteClass, RewriteList, ScriptFacts, list_rewrites};
use super::setting_list::SettingList;

/// What runs here and what does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AemProjectReport {
    /// The number of components, scripts, pages and so on that the packages bring.
    pub runs: BTreeMap<String, usize>,
    /// What must be written anew.
    pub rewrite: RewriteList,
    /// The resource types that nodes name and no package has, each with the first node.
    pub missing_types: BTreeMap<String, String>,
    /// The configurations.
    pub settings: SettingList,
    /// The files that are not taken over.
    pub left_out: Vec<LeftOutFile>,
}

/// Types of AEM's editor and services, which draw nothing on pages.
const EDITOR_TYPES: [&str; 7] =
    ["granite/", "cq/gui/", "cq/", "dam/", "wcm/core/", "sling/", "sling:"];

impl AemProjectReport {
    pub(super) fn new(mut contents: PackageContents, settings: SettingList) -> Self {
        let has_type = |resource_type: &str| {
            let relative = resource_type
                .strip_prefix("/apps/")
                .or_else(|| resource_type.strip_prefix("/libs/"))
                .unwrap_or(resource_type);
            is_platform_type(relative)
                || ["/apps", "/libs"]
                    .iter()
                    .any(|root| contents.component_paths.contains(&format!("{root}/{relative}")))
                || EDITOR_TYPES.iter().any(|start| relative.starts_with(start))
                || relative.contains(':')
        };
        let missing =
            contents.used_types.iter().filter(|(resource_type, _)| !has_type(resource_type));
        let missing_types =
            missing.map(|(resource_type, path)| (resource_type.clone(), path.clone())).collect();
        let ScriptFacts { rewrites, native_classes } = list_rewrites(&mut contents);
        for bundle in &rewrites.bundles {
            if let Some(content) = &bundle.initial_content {
                let reason = format!("its initial content is not loaded: {content}");
                contents.left_out.push(LeftOutFile::new(bundle.origin.as_str(), reason));
            }
        }
        let mut runs: BTreeMap<String, usize> =
            contents.counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        for (name, count) in [
            ("use-scripts in JavaScript", contents.scripts.use_scripts.len()),
            ("native classes of the Core Components and AEM", native_classes),
        ] {
            if count > 0 {
                runs.insert(name.to_owned(), count);
            }
        }
        let mut left_out = contents.left_out;
        left_out.sort();
        left_out.dedup();
        Self { runs, rewrite: rewrites, missing_types, settings, left_out }
    }
}

impl fmt::Display for AemProjectReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "runs")?;
        for (name, count) in &self.runs {
            writeln!(f, "  {count:>7}  {name}")?;
        }
        write_rewrites(f, &self.rewrite)?;
        write_list(
            f,
            "resource types that no package has",
            &self.missing_types,
            |f, (name, path)| writeln!(f, "  {name}, used by {path}"),
        )?;
        write_list(f, "settings that apply", &self.settings.applied, |f, setting| {
            writeln!(f, "  {}: {}", setting.pid, setting.path)
        })?;
        write_list(f, "settings that are skipped", &self.settings.skipped, |f, setting| {
            let reason = setting.reason.as_deref().unwrap_or_default();
            writeln!(f, "  {}: {}", setting.pid, setting.path)?;
            writeln!(
                f,
                "    {reason}{}{}",
                list_mark(&setting.properties),
                setting.properties.join(", ")
            )
        })?;
        write_list(f, "left out", &self.left_out, |f, file| {
            writeln!(f, "  {}: {}", file.file, file.reason)
        })
    }
}

fn list_mark(items: &[String]) -> &'static str {
    if items.is_empty() { "" } else { ": " }
}

fn write_rewrites(f: &mut fmt::Formatter<'_>, rewrite: &RewriteList) -> fmt::Result {
    write_list(f, "Java classes to rewrite", &rewrite.classes, write_class)?;
    write_list(f, "scripts in other languages to rewrite", &rewrite.scripts, |f, path| {
        writeln!(f, "  {path}")
    })?;
    write_list(f, "Java code to rewrite, by bundle", &rewrite.bundles, write_bundle)?;
    write_list(f, "faults of scripts and style sheets", &rewrite.faults, |f, fault| {
        writeln!(f, "  {fault}")
    })
}

fn write_class(f: &mut fmt::Formatter<'_>, class: &RewriteClass) -> fmt::Result {
    let bundle = class.bundle.as_ref().map(|bundle| format!(" in {bundle}")).unwrap_or_default();
    writeln!(f, "  {}{bundle}", class.name)?;
    for used in &class.uses {
        let members: Vec<&str> = used.members.iter().map(String::as_str).collect();
        let more = match (used.is_passed_on, members.is_empty()) {
            (true, true) => "given to a template",
            (true, false) => ", and given to a template",
            (false, true) => "nothing",
            (false, false) => "",
        };
        writeln!(f, "    {}:{} reads {}{more}", used.script, used.line, members.join(", "))?;
    }
    Ok(())
}

fn write_bundle(f: &mut fmt::Formatter<'_>, bundle: &Bundle) -> fmt::Result {
    writeln!(f, "  {} {}: {}", bundle.name, bundle.version, bundle.origin)?;
    if !bundle.models.is_empty() {
        writeln!(f, "    models in {}", bundle.models.join(", "))?;
    }
    for component in &bundle.components {
        let serves = list_mark(&component.serves);
        writeln!(
            f,
            "    {} {}{serves}{}",
            component.kind,
            component.class,
            component.serves.join(", ")
        )?;
    }
    Ok(())
}

/// Writes a heading and items, if there are any.
fn write_list<T>(
    f: &mut fmt::Formatter<'_>,
    heading: &str,
    items: impl IntoIterator<Item = T>,
    write_item: impl Fn(&mut fmt::Formatter<'_>, T) -> fmt::Result,
) -> fmt::Result {
    let mut items = items.into_iter().peekable();
    if items.peek().is_some() {
        writeln!(f, "{heading}")?;
    }
    for item in items {
        write_item(f, item)?;
    }
    Ok(())
}
