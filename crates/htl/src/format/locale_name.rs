//! Names of locales, as Java and BCP 47 write them.

/// Returns a locale as identifiers of languages are written, with hyphens.
pub(super) fn parse_locale(name: &str) -> icu_locale_core::Locale {
    let locale = icu_locale_core::Locale::try_from_str(&name.trim().replace('_', "-"));
    locale.unwrap_or(icu_locale_core::locale!("en"))
}
