//! Packages within a package: stored by the outer one, then installed as its `subPackageHandling` says.

use std::collections::BTreeSet;
use std::io::{Read, Seek};

use super::definition::{definition, mark_installed, newer_installed, register_nested};
use super::options::{InstallOptions, NestedRule};
use super::properties::NestedHandling;
use super::report::InstallReport;
use super::target::{InstallTarget, Progress};
use super::{Nested, Package};
use crate::{NodePath, Result};

/// What became of the packages within a package.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) reports: Vec<InstallReport>,
    pub(super) warnings: Vec<String>,
}

/// Installs those packages within `outer` whose files were stored, those that others need first.
pub(super) fn install<R: Read + Seek>(
    outer: &mut Package<R>,
    stored: &BTreeSet<NodePath>,
    target: &mut dyn InstallTarget,
    options: &InstallOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Outcome> {
    let mut out = Outcome::default();
    let parent = outer.id.clone();
    sort(&mut outer.nested);
    for Nested { path, package, handling } in &mut outer.nested {
        if !stored.contains(path) {
            continue;
        }
        if let Some(stamp) = &options.stamp {
            let node = definition(&package.id, &package.properties, &package.filter, stamp);
            register_nested(target, path, node, &parent)?;
        }
        if *handling == NestedHandling::Store || options.nested == NestedRule::Store {
            continue;
        }
        if *handling == NestedHandling::Install
            && let Some(newer) = newer_installed(target, &package.id)?
        {
            let message = format!("`{path}` is stored and not installed: `{newer}` is installed");
            out.warnings.push(message);
            continue;
        }
        out.reports.push(package.install_with(target, options, progress)?);
        if options.stamp.is_some() {
            mark_installed(target, path, options.stamp.as_ref())?;
        }
    }
    Ok(out)
}

/// Puts packages behind those that they need; the order stays where none needs another.
fn sort(nested: &mut Vec<Nested>) {
    let mut sorted: Vec<Nested> = Vec::with_capacity(nested.len());
    while !nested.is_empty() {
        let needs_another = |one: &Nested| {
            one.package.properties.dependencies.iter().any(|need| {
                nested
                    .iter()
                    .any(|other| other.path != one.path && need.is_met_by(&other.package.id))
            })
        };
        // Packages that need each other are taken in their order.
        let next = nested.iter().position(|one| !needs_another(one)).unwrap_or(0);
        sorted.push(nested.remove(next));
    }
    *nested = sorted;
}
