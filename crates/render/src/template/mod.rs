//! Templates: MiniJinja over lazy objects of nodes.
//!
//! In: a script and a resource. Out: text. Templates see `resource`, `properties`, `page`, `request` and `edit`, the
//! functions of `function` and the filters of `filter`; nothing of a node is copied before it is asked for.
//!
//! On failure: a template that fails leaves a placeholder (`failure`); the page around it is drawn all the same.

mod asset;
mod escape;
mod failure;
mod filter;
mod frame;
mod function;
mod object;
mod page;
mod scope;
mod value;

use minijinja::{Environment, UndefinedBehavior};

pub(crate) use escape::escape;
pub(crate) use failure::Failure;
pub(crate) use scope::{Asked, Handover, Progress, Scope};

use crate::engine::{Limits, Mode};

/// Macros and blocks nested deeper than this end in an error; what they take of the stack must stay below the 512 KiB
/// that [`Limits::stack`] leaves.
const RECURSION_LIMIT: usize = 80;

/// Makes the environment that all scripts are compiled in.
pub(crate) fn environment(mode: Mode, limits: &Limits) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(escape::by_name);
    environment.set_formatter(escape::format);
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    environment.set_fuel(Some(limits.steps));
    environment.set_recursion_limit(RECURSION_LIMIT);
    // Keeps the source with errors, for the excerpts that authors see.
    environment.set_debug(mode == Mode::Author);
    environment.set_path_join_callback(|name, parent| join(name, parent).into());
    function::add_all(&mut environment);
    filter::add_all(&mut environment);
    environment
}

/// Resolves the name in `{% include %}` and `{% import %}` against the folder of the script that names it.
fn join(name: &str, parent: &str) -> String {
    if name.starts_with('/') {
        return name.to_owned();
    }
    let folder = parent.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut segments: Vec<&str> = folder.split('/').collect();
    for segment in name.split('/') {
        match segment {
            "." => {}
            ".." => segments.truncate(segments.len().saturating_sub(1).max(1)),
            segment => segments.push(segment),
        }
    }
    segments.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_names_of_templates() {
        let parent = "/apps/site/page/page.html.j2";
        assert_eq!(join("head.j2", parent), "/apps/site/page/head.j2");
        assert_eq!(join("../macros.j2", parent), "/apps/site/macros.j2");
        assert_eq!(join("./a/b.j2", parent), "/apps/site/page/a/b.j2");
        assert_eq!(join("/apps/x.j2", parent), "/apps/x.j2");
        assert_eq!(join("../../../../../x.j2", parent), "/x.j2");
    }
}
