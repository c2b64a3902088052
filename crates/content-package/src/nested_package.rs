//! Nested packages: stored by the outer package, then installed as its `subPackageHandling` specifies.

use std::collections::BTreeSet;
use std::io::{Read, Seek};

use tympan_content::NodePath;

use crate::Result;
use crate::content_package::{ContentPackage, NestedPackage};
use crate::definition::{
    add_nested_definition, build_definition_node, find_newer_installed, mark_installed,
};
use crate::install_options::{InstallOptions, NestedPackageRule};
use crate::install_report::InstallReport;
use crate::install_target::{InstallProgress, InstallTarget};
use crate::package_properties::NestedPackageHandling;

/// The result of installing nested packages.
#[derive(Debug, Default)]
pub(crate) struct NestedInstallOutcome {
    pub(crate) reports: Vec<InstallReport>,
    pub(crate) warnings: Vec<String>,
}

/// Installs the stored nested packages of `outer`, dependencies first.
pub(crate) fn install_nested<R: Read + Seek>(
    outer: &mut ContentPackage<R>,
    stored: &BTreeSet<NodePath>,
    target: &mut dyn InstallTarget,
    options: &InstallOptions,
    progress: &mut dyn FnMut(InstallProgress<'_>),
) -> Result<NestedInstallOutcome> {
    let mut out = NestedInstallOutcome::default();
    let parent = outer.id.clone();
    sort_by_dependencies(&mut outer.nested);
    for NestedPackage { path, package, handling } in &mut outer.nested {
        if !stored.contains(path) {
            continue;
        }
        if let Some(stamp) = &options.stamp {
            let node =
                build_definition_node(&package.id, &package.properties, &package.filter, stamp);
            add_nested_definition(target, path, node, &parent)?;
        }
        if *handling == NestedPackageHandling::Store
            || options.nested_rule == NestedPackageRule::Store
        {
            continue;
        }
        if *handling == NestedPackageHandling::Install
            && let Some(newer) = find_newer_installed(target, &package.id)?
        {
            let message =
                format!("`{path}` is stored but not installed, as `{newer}` is installed");
            out.warnings.push(message);
            continue;
        }
        out.reports.push(package.install_with_options(target, options, progress)?);
        if options.stamp.is_some() {
            mark_installed(target, path, options.stamp.as_ref())?;
        }
    }
    Ok(out)
}

/// Sorts packages after their dependencies; otherwise the order stays.
fn sort_by_dependencies(nested: &mut Vec<NestedPackage>) {
    let mut sorted: Vec<NestedPackage> = Vec::with_capacity(nested.len());
    while !nested.is_empty() {
        let needs_another = |package: &NestedPackage| {
            package.package.properties.dependencies.iter().any(|need| {
                nested.iter().any(|dependency| {
                    dependency.path != package.path && need.is_met_by(&dependency.package.id)
                })
            })
        };
        // Packages that depend on each other are installed in their given order.
        let next = nested.iter().position(|package| !needs_another(package)).unwrap_or(0);
        sorted.push(nested.remove(next));
    }
    *nested = sorted;
}
