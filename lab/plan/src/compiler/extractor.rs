//! Extractors: what a plan reads from responses.

use super::element_reader::JmxElementReader;
use crate::extractor::{ResponseExtractor, ResponseField, XPathOptions};
use crate::jmx_element::JmxElement;
use crate::json_path;
use crate::markup::CssSelector;
use crate::template::TextTemplate;

pub(super) fn compile_extractor<'a>(
    reader: &mut JmxElementReader,
    element: &JmxElement<'a>,
) -> Option<ResponseExtractor> {
    let extractor = match element.class {
        "RegexExtractor" => ResponseExtractor::Regex {
            name: reader.compile_property(element, "RegexExtractor.refname"),
            pattern: reader.compile_pattern(element, "RegexExtractor.regex"),
            template: reader.compile_property(element, "RegexExtractor.template"),
            match_number: reader.compile_property(element, "RegexExtractor.match_number"),
            default: reader.compile_property(element, "RegexExtractor.default"),
            clears_on_missing: element.flag_property("RegexExtractor.default_empty_value", false),
            response_field: compile_response_field(reader, element, "RegexExtractor.useHeaders"),
            variable: reader.scope_variable(element),
        },
        "BoundaryExtractor" => ResponseExtractor::Boundary {
            name: reader.compile_property(element, "BoundaryExtractor.refname"),
            left: reader.compile_property(element, "BoundaryExtractor.lboundary"),
            right: reader.compile_property(element, "BoundaryExtractor.rboundary"),
            match_number: reader.compile_property(element, "BoundaryExtractor.match_number"),
            default: reader.compile_property(element, "BoundaryExtractor.default"),
            clears_on_missing: element
                .flag_property("BoundaryExtractor.default_empty_value", false),
            response_field: compile_response_field(reader, element, "BoundaryExtractor.useHeaders"),
        },
        "XPathExtractor" => compile_xpath_extractor(reader, element),
        "XPath2Extractor" => compile_xpath2_extractor(reader, element),
        "HtmlExtractor" => compile_html_extractor(reader, element),
        "JSONPathExtractor" => compile_plugin_json_extractor(reader, element),
        "JSONPostProcessor" => {
            let paths = reader.compile_property(element, "JSONPostProcessor.jsonPathExprs");
            if let Some(text) = paths.as_literal() {
                let text = text.to_owned();
                for path in text.split(';') {
                    if let Err(fault) = json_path::check_path(path) {
                        reader.report_unsupported(element, &fault);
                    }
                }
            }
            ResponseExtractor::Json {
                names: reader.compile_property(element, "JSONPostProcessor.referenceNames"),
                paths,
                match_numbers: reader.compile_property(element, "JSONPostProcessor.match_numbers"),
                defaults: reader.compile_property(element, "JSONPostProcessor.defaultValues"),
                joins_all: element.flag_property("JSONPostProcessor.compute_concat", false),
                variable: reader.scope_variable(element),
            }
        }
        _ => return None,
    };
    reader.report_unread_properties(element);
    Some(extractor)
}

fn compile_xpath_extractor<'a>(
    reader: &mut JmxElementReader,
    element: &JmxElement<'a>,
) -> ResponseExtractor {
    reader.reject_xml_validation(element, "XPathExtractor.validate");
    element.ignore_properties(&[
        "XPathExtractor.quiet",
        "XPathExtractor.report_errors",
        "XPathExtractor.show_warnings",
        "XPathExtractor.namespace",
        "XPathExtractor.whitespace",
    ]);
    let options = XPathOptions {
        is_html: element.flag_property("XPathExtractor.tolerant", false),
        returns_markup: element.flag_property("XPathExtractor.fragment", false),
        is_xpath2: false,
    };
    ResponseExtractor::XPath {
        name: reader.compile_property(element, "XPathExtractor.refname"),
        path: reader.compile_xpath(element, "XPathExtractor.xpathQuery", options.is_xpath2),
        match_number: reader.compile_property(element, "XPathExtractor.matchNumber"),
        default: reader.compile_property(element, "XPathExtractor.default"),
        options,
        variable: reader.scope_variable(element),
    }
}

fn compile_xpath2_extractor<'a>(
    reader: &mut JmxElementReader,
    element: &JmxElement<'a>,
) -> ResponseExtractor {
    let as_markup = element.flag_property("XPathExtractor2.fragment", false);
    let options = XPathOptions { is_html: false, returns_markup: as_markup, is_xpath2: true };
    let number = reader.compile_property(element, "XPathExtractor2.matchNumber");
    ResponseExtractor::XPath {
        name: reader.compile_property(element, "XPathExtractor2.refname"),
        path: reader.compile_xpath(element, "XPathExtractor2.xpathQuery", options.is_xpath2),
        match_number: if number.is_empty() { TextTemplate::literal("0") } else { number },
        default: reader.compile_property(element, "XPathExtractor2.default"),
        options,
        variable: reader.scope_variable(element),
    }
}

fn compile_html_extractor<'a>(
    reader: &mut JmxElementReader,
    element: &JmxElement<'a>,
) -> ResponseExtractor {
    let kind = element.text_property("HtmlExtractor.extractor_impl");
    if !matches!(kind, "" | "JSOUP") {
        let why = format!("selectors of `{kind}` are not supported, only those of JSOUP");
        reader.report_unsupported(element, &why);
    }
    let selector = reader.compile_property(element, "HtmlExtractor.expr");
    if let Some(text) = selector.as_literal()
        && let Err(fault) = CssSelector::parse(text)
    {
        reader.report_unsupported(element, &fault);
    }
    ResponseExtractor::CssSelector {
        name: reader.compile_property(element, "HtmlExtractor.refname"),
        selector,
        attribute: reader.compile_property(element, "HtmlExtractor.attribute"),
        match_number: reader.compile_property(element, "HtmlExtractor.match_number"),
        default: reader.compile_property(element, "HtmlExtractor.default"),
        clears_on_missing: element.flag_property("HtmlExtractor.default_empty_value", false),
        variable: reader.scope_variable(element),
    }
}

/// Compiles the extractor of the JSON plugins, which extracts the first value.
fn compile_plugin_json_extractor<'a>(
    reader: &mut JmxElementReader,
    element: &JmxElement<'a>,
) -> ResponseExtractor {
    if element.text_property("INPUT_FORMAT") == "YAML" {
        reader.report_unsupported(element, "YAML responses are not supported, only JSON");
    }
    let paths = reader.compile_property(element, "JSONPATH");
    if let Some(text) = paths.as_literal()
        && let Err(fault) = json_path::check_path(text)
    {
        reader.report_unsupported(element, &fault);
    }
    let variable = reader.compile_property(element, "VARIABLE");
    ResponseExtractor::Json {
        names: reader.compile_property(element, "VAR"),
        paths,
        match_numbers: TextTemplate::literal("1"),
        defaults: reader.compile_property(element, "DEFAULT"),
        joins_all: false,
        variable: (element.text_property("SUBJECT") == "VAR").then_some(variable),
    }
}

fn compile_response_field<'a>(
    reader: &mut JmxElementReader,
    element: &JmxElement<'a>,
    name: &'a str,
) -> ResponseField {
    let keyword = element.text_property(name);
    ResponseField::from_keyword(keyword).unwrap_or_else(|| {
        let why = format!("field `{keyword}` is not supported");
        reader.report_unsupported(element, &why);
        ResponseField::Body
    })
}
