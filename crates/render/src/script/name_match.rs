//! Parses the file name of a script: `[<selectors with />|<label>][.<extension>][.<METHOD>].<engine>`.

use crate::script_language::ScriptLanguage;

/// The properties of a request that select a script.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScriptCriteria<'a> {
    /// The HTTP method, in upper case.
    pub method: &'a str,
    /// The selectors of the URL, in order.
    pub selectors: &'a [String],
    /// The extension of the URL.
    pub extension: Option<&'a str>,
}

impl ScriptCriteria<'_> {
    /// Returns true if a script may omit the method.
    fn is_read_method(&self) -> bool {
        matches!(self.method, "GET" | "HEAD")
    }

    /// Returns true if a script may omit the extension.
    fn is_html(&self) -> bool {
        self.extension.is_none_or(|extension| extension == "html")
    }
}

/// The rank of a script's name for a request; greater is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ScriptMatch {
    /// Number of leading selectors that the script names.
    pub selector_count: usize,
    /// True if it names the extension.
    pub has_extension: bool,
    /// True if it names the method beside something else: a bare `GET` ranks last.
    pub has_method: bool,
    /// True if it names a selector or the label.
    pub has_base: bool,
}

/// Ranks a script by its path below the folder of a resource type.
///
/// `label` is the last segment of the type. Returns `None` if the script does not match.
pub(crate) fn match_script_name(
    relative: &str,
    label: &str,
    criteria: &ScriptCriteria<'_>,
) -> Option<ScriptMatch> {
    let (folder, file) = relative.rsplit_once('/').unwrap_or(("", relative));
    let folders: Vec<&str> = folder.split('/').filter(|name| !name.is_empty()).collect();
    let leading = criteria.selectors.get(..folders.len())?;
    if leading.iter().ne(folders.iter()) {
        return None;
    }
    ScriptLanguage::from_file_name(file)?;
    let mut parts: Vec<&str> = file.split('.').collect();
    parts.pop();
    let next_selector = criteria.selectors.get(folders.len()).map(String::as_str);
    let readings = [ScriptNameBase::Selector, ScriptNameBase::Label, ScriptNameBase::None]
        .into_iter()
        .filter_map(|base| {
            let rest = base.strip_base(&parts, next_selector, label, folders.is_empty())?;
            let (extension, method) = match_name_rest(rest, criteria)?;
            let selectors = folders.len() + usize::from(base == ScriptNameBase::Selector);
            let is_bare = base == ScriptNameBase::None && !extension;
            Some(ScriptMatch {
                selector_count: selectors,
                has_extension: extension,
                has_method: method && !is_bare,
                has_base: base != ScriptNameBase::None,
            })
        });
    readings.max()
}

/// The meaning of the first part of a script's file name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScriptNameBase {
    Selector,
    Label,
    None,
}

impl ScriptNameBase {
    /// Removes the first part if it has this meaning.
    fn strip_base<'a, 'b>(
        self,
        parts: &'a [&'b str],
        selector: Option<&str>,
        label: &str,
        is_top: bool,
    ) -> Option<&'a [&'b str]> {
        let first = parts.first().copied();
        match self {
            Self::Selector if first.is_some() && first == selector => parts.get(1..),
            Self::Label if is_top && first == Some(label) => parts.get(1..),
            Self::None if is_top => Some(parts),
            Self::Selector | Self::Label | Self::None => None,
        }
    }
}

/// Parses `[extension][.METHOD]`; returns which of the two are present.
fn match_name_rest(parts: &[&str], criteria: &ScriptCriteria<'_>) -> Option<(bool, bool)> {
    let names_extension =
        parts.first().copied().is_some_and(|part| Some(part) == criteria.extension);
    let rest = if names_extension { parts.get(1..)? } else { parts };
    let names_method = match rest {
        [] => false,
        [method] => *method == criteria.method || (criteria.method == "HEAD" && *method == "GET"),
        _ => return None,
    };
    if !rest.is_empty() && !names_method {
        return None;
    }
    let has_extension = names_extension || criteria.is_html();
    let has_method = names_method || criteria.is_read_method();
    (has_extension && has_method).then_some((names_extension, names_method))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(candidates: &[&str], request: &str) -> Vec<String> {
        let (method, rest) = request.split_once(' ').unwrap();
        let mut selectors = crate::url::split_selectors(rest);
        let extension = selectors.pop().filter(|extension| extension != "-");
        let criteria =
            ScriptCriteria { method, selectors: &selectors, extension: extension.as_deref() };
        let mut fits: Vec<(ScriptMatch, &str)> = candidates
            .iter()
            .filter_map(|name| Some((match_script_name(name, "sample", &criteria)?, *name)))
            .collect();
        fits.sort_by_key(|fit| std::cmp::Reverse(fit.0));
        fits.into_iter().map(|(_, name)| name.trim_end_matches(".j2").to_owned()).collect()
    }

    /// Every name that the cases below use.
    const NAMES: [&str; 14] = [
        "GET.j2",
        "sample.j2",
        "html.j2",
        "print.j2",
        "print.html.j2",
        "print/a4.j2",
        "print/a4.html.j2",
        "a4.html.j2",
        "a4/print.html.j2",
        "sample.html.j2",
        "sample.POST.j2",
        "POST.j2",
        "json.j2",
        "print.esp",
    ];

    #[test]
    fn ranks_as_sling_documents() {
        let expected = [
            "print/a4.html",
            "print/a4",
            "print.html",
            "print",
            "sample.html",
            "html",
            "sample",
            "GET",
        ];
        assert_eq!(rank(&NAMES, "GET print.a4.html"), expected);
        let methods = ["sample.j2", "GET.j2", "sample.GET.j2", "html.GET.j2", "sample.html.j2"];
        let expected = ["html.GET", "sample.html", "sample.GET", "sample", "GET"];
        assert_eq!(rank(&methods, "GET html"), expected);
    }

    #[test]
    fn scripts_of_both_languages_have_the_same_names() {
        let names = ["sample.html", "print.html", "print.html.html", "a4/print.html", "GET.html"];
        assert_eq!(rank(&names, "GET html"), ["sample.html", "GET.html"]);
        assert_eq!(
            rank(&names, "GET print.html"),
            ["print.html.html", "print.html", "sample.html", "GET.html"]
        );
        assert_eq!(
            rank(&["sample.html", "sample.html.j2"], "GET html"),
            ["sample.html", "sample.html"]
        );
        assert_eq!(rank(&["sample.html"], "GET json"), Vec::<String>::new());
        assert_eq!(rank(&["sample.htm", "html"], "GET html"), Vec::<String>::new());
    }

    #[test]
    fn takes_only_what_the_request_allows() {
        assert_eq!(rank(&NAMES, "GET html"), ["sample.html", "html", "sample", "GET"]);
        assert_eq!(rank(&NAMES, "GET json"), ["json"]);
        assert_eq!(rank(&NAMES, "GET -"), ["sample", "GET"]);
        assert_eq!(rank(&NAMES, "POST html"), ["sample.POST", "POST"]);
        assert_eq!(rank(&NAMES, "HEAD html"), ["sample.html", "html", "sample", "GET"]);
        assert_eq!(rank(&NAMES, "DELETE html"), Vec::<String>::new());
    }

    #[test]
    fn selectors_must_lead_in_order() {
        assert_eq!(
            rank(&["a4.html.j2", "a4/print.html.j2"], "GET print.a4.html"),
            Vec::<String>::new()
        );
        assert_eq!(rank(&["christmas.html.j2"], "GET christmas.1.html"), ["christmas.html"]);
        assert_eq!(rank(&["2214.j2"], "GET 2214.pdf"), Vec::<String>::new());
        assert_eq!(rank(&["print/html.j2"], "GET print.html"), Vec::<String>::new());
    }

    #[test]
    fn a_label_can_look_like_an_extension_or_selector() {
        let criteria = ScriptCriteria { method: "GET", selectors: &[], extension: Some("html") };
        assert!(match_script_name("html.html.j2", "html", &criteria).unwrap().has_extension);
        assert!(match_script_name("html.j2", "html", &criteria).unwrap().has_extension);
        let selectors = ["sample".to_owned()];
        let criteria =
            ScriptCriteria { method: "GET", selectors: &selectors, extension: Some("html") };
        assert_eq!(
            match_script_name("sample.html.j2", "sample", &criteria).unwrap().selector_count,
            1
        );
    }
}
