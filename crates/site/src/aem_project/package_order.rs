//! The order in which the packages of a project are installed.

use std::path::PathBuf;

use tympan_content_package::{ContentPackage, PackageDependency};

use super::project::AemProjectPackage;

/// A package with what decides about its place.
#[derive(Debug)]
pub(super) struct SortedPackage {
    pub(super) package: AemProjectPackage,
    dependencies: Vec<PackageDependency>,
    /// Components come before the content that they draw.
    rank: u8,
}

impl SortedPackage {
    pub(super) fn new<R>(package: &ContentPackage<R>, file: PathBuf, origin: String) -> Self {
        let properties = package.properties();
        let is_code = |root: &str| root.starts_with("/apps") || root.starts_with("/libs");
        let rank = match properties.get("packageType").map(str::trim) {
            Some("application") => 0,
            Some("content") => 2,
            _ if package.filter().roots().iter().all(|filter| is_code(filter.root.as_str())) => 0,
            _ => 1,
        };
        let dependencies = properties.dependencies.clone();
        let package = AemProjectPackage { id: package.id().clone(), file, origin };
        Self { package, dependencies, rank }
    }
}

/// Sorts packages behind those that they need; otherwise components come first, and the order stays.
pub(super) fn sort_by_dependencies(mut packages: Vec<SortedPackage>) -> Vec<SortedPackage> {
    packages.sort_by_key(|package| package.rank);
    let mut sorted = Vec::with_capacity(packages.len());
    while !packages.is_empty() {
        let needs_another = |package: &SortedPackage| {
            package.dependencies.iter().any(|need| {
                packages.iter().any(|other| {
                    other.package.id != package.package.id && need.is_met_by(&other.package.id)
                })
            })
        };
        // Packages that need each other are installed in their given order.
        let next = packages.iter().position(|package| !needs_another(package)).unwrap_or(0);
        sorted.push(packages.remove(next));
    }
    sorted
}
