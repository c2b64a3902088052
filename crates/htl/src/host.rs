//! The interface to whoever runs scripts: variables, objects, inclusions, translation.

use std::borrow::Cow;
use std::sync::Arc;

use crate::error::HostError;
use crate::program::HtlScript;
use crate::value::{HtlDate, HtlValue};

/// What a script needs from outside. One host serves one request, in one thread.
///
/// A failing method ends the run with [`Error::Host`](crate::Error::Host). A host that wants to go on instead, as Sling
/// does with a resource that cannot be drawn, writes what it likes and returns `Ok`.
pub trait HtlHost {
    /// Returns a global variable, such as `properties` or `wcmmode`, or `None` if there is none.
    ///
    /// Names of variables do not depend on case: `name` is in lower case (`currentpage`). A run asks at most once for
    /// each name, when the script first reads it.
    ///
    /// # Errors
    /// If the value cannot be made.
    fn global(&mut self, name: &str) -> Result<Option<HtlValue>, HostError>;

    /// Evaluates `data-sly-use`: makes an object of a class or a JavaScript, or finds a library of templates.
    ///
    /// # Errors
    /// If there is no such object, or it fails.
    fn use_object(&mut self, request: &HtlUseRequest<'_>) -> Result<HtlUseResult, HostError>;

    /// Evaluates `data-sly-resource`: appends the markup of a resource.
    ///
    /// # Errors
    /// If the resource cannot be drawn and the whole page should fail.
    fn include_resource(
        &mut self,
        inclusion: &ResourceInclusion<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), HostError>;

    /// Evaluates `data-sly-include`: appends the output of another script for the same resource. Variables of the
    /// including script are not visible in the included one.
    ///
    /// # Errors
    /// If there is no such script, or it fails.
    fn include_script(
        &mut self,
        inclusion: &ScriptInclusion<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), HostError>;

    /// Translates a text for the option `i18n`; `None` leaves it as it is.
    ///
    /// # Errors
    /// If the dictionaries cannot be read.
    fn translate(&mut self, request: &TranslationRequest<'_>) -> Result<Option<String>, HostError> {
        let _ = request;
        Ok(None)
    }

    /// Returns the locale for formats of dates and numbers without the option `locale`.
    fn locale(&mut self) -> Cow<'_, str> {
        Cow::Borrowed("en")
    }

    /// Returns the offset of a time zone from UTC in minutes at an instant, or `None` if the zone is unknown. Only names
    /// are asked for, such as `Europe/Berlin`; `UTC`, `Z` and `GMT+01:00` need no host.
    fn zone_offset(&mut self, zone: &str, millis: i64) -> Option<i32> {
        let _ = (zone, millis);
        None
    }

    /// Formats a date by a pattern of Java, for hosts with formats of their own; `None` leaves it to this crate.
    fn format_date(&mut self, date: HtlDate, pattern: &str, locale: &str) -> Option<String> {
        let _ = (date, pattern, locale);
        None
    }
}

/// The options after `@`, evaluated, in the order of the source.
#[derive(Debug, Clone, Default)]
pub struct HtlOptions(Vec<(Arc<str>, HtlValue)>);

impl HtlOptions {
    /// Returns the value of an option. An option without a value has [`HtlValue::Null`].
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&HtlValue> {
        self.0.iter().find(|(option, _)| &**option == name).map(|(_, value)| value)
    }

    /// Returns the text of an option, or `None` if it is absent or null.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        self.value(name).filter(|value| !value.is_null()).map(HtlValue::to_text)
    }

    /// Iterates over names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &HtlValue)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    /// Returns true without options.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(Arc<str>, HtlValue)> for HtlOptions {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, HtlValue)>>(options: I) -> Self {
        Self(options.into_iter().collect())
    }
}

/// A `data-sly-use`.
#[derive(Debug)]
pub struct HtlUseRequest<'a> {
    /// The name of the class or the path of the script, as the expression gives it.
    pub name: &'a str,
    /// The options, which become properties of the object's parameters.
    pub options: &'a HtlOptions,
    /// The name of the script that contains the statement; relative paths begin at its folder.
    pub script: &'a str,
}

/// The result of a `data-sly-use`.
#[derive(Debug, Clone)]
pub enum HtlUseResult {
    /// An object.
    Object(HtlValue),
    /// A script, whose templates become the properties of the variable.
    Templates(HtlScript),
}

/// A `data-sly-resource`.
#[derive(Debug)]
pub struct ResourceInclusion<'a> {
    /// The value of the expression, or of the option `path`: a path as text, or a resource as one of the host's objects
    /// ([`HtlValue::downcast_ref`]).
    pub target: &'a HtlValue,
    /// The path if the target is text, with `prependPath` and `appendPath` applied; relative to the current resource
    /// unless it begins with a slash.
    pub path: Option<&'a str>,
    /// All options: `resourceType`, `selectors`, `addSelectors`, `removeSelectors`, `prependPath`, `appendPath`,
    /// `decorationTagName`, `cssClassName`, `decoration`, `wcmmode`, `requestAttributes`, and others.
    pub options: &'a HtlOptions,
    /// The name of the script that contains the statement.
    pub script: &'a str,
}

impl ResourceInclusion<'_> {
    /// Returns the selectors for the resource: those of the current request, changed by the options `selectors`,
    /// `addSelectors` and `removeSelectors`.
    #[must_use]
    pub fn selectors(&self, current: &[&str]) -> Vec<String> {
        let names = |name| self.options.value(name).map(split_selectors);
        let mut selectors: Vec<String> = match names("selectors") {
            Some(selectors) => selectors,
            None => current.iter().map(|selector| (*selector).to_owned()).collect(),
        };
        if let Some(removed) = names("removeSelectors") {
            // Without a value the option removes all.
            selectors.retain(|selector| !removed.is_empty() && !removed.contains(selector));
        }
        selectors.extend(names("addSelectors").unwrap_or_default());
        selectors
    }
}

/// Splits selectors, given as a text with periods or as a list.
fn split_selectors(value: &HtlValue) -> Vec<String> {
    let texts = match value.as_list() {
        Some(list) => list.iter().map(HtlValue::to_text).collect(),
        None => vec![value.to_text()],
    };
    let parts = texts.iter().flat_map(|text| text.split('.')).filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}

/// A `data-sly-include`.
#[derive(Debug)]
pub struct ScriptInclusion<'a> {
    /// The path of the script, with `prependPath` and `appendPath` applied.
    pub path: &'a str,
    /// All options, such as `requestAttributes` and `wcmmode`.
    pub options: &'a HtlOptions,
    /// The name of the script that contains the statement; relative paths begin at its folder.
    pub script: &'a str,
}

/// An expression with the option `i18n`.
#[derive(Debug, Clone, Copy)]
pub struct TranslationRequest<'a> {
    /// The text, which is the key in the dictionaries.
    pub text: &'a str,
    /// The option `locale`; without it, the language of the page counts.
    pub locale: Option<&'a str>,
    /// The option `hint`, which tells equal texts apart.
    pub hint: Option<&'a str>,
    /// The option `basename`, which names a dictionary.
    pub basename: Option<&'a str>,
}
