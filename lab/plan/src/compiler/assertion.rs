//! Assertions about samples.

use super::element_reader::JmxElementReader;
use crate::assertion::{
    AssertionSubject, SampleAssertion, SizeComparison, SizeSubject, TextComparison,
};
use crate::jmx_element::{JmxElement, collection_entries};
use crate::json_path;
use crate::template::TextTemplate;

pub(super) fn compile_assertion<'a>(
    reader: &mut JmxElementReader,
    element: &JmxElement<'a>,
) -> Option<SampleAssertion> {
    let assertion = match element.class {
        "ResponseAssertion" => compile_response_assertion(reader, element),
        "DurationAssertion" => SampleAssertion::Duration(
            reader.compile_property(element, "DurationAssertion.duration"),
        ),
        "SizeAssertion" => compile_size_assertion(reader, element),
        "XPathAssertion" => {
            reader.reject_xml_validation(element, "XPath.validate");
            element.ignore_properties(&[
                "XPath.quiet",
                "XPath.report_errors",
                "XPath.show_warnings",
                "XPath.namespace",
                "XPath.whitespace",
            ]);
            SampleAssertion::XPath {
                path: reader.compile_xpath(element, "XPath.xpath", false),
                inverts: element.flag_property("XPath.negate", false),
                is_html: element.flag_property("XPath.tolerant", false),
                is_xpath2: false,
                variable: reader.scope_variable(element),
            }
        }
        "XPath2Assertion" => SampleAssertion::XPath {
            path: reader.compile_xpath(element, "XPath.xpath", true),
            inverts: element.flag_property("XPath.negate", false),
            is_html: false,
            is_xpath2: true,
            variable: reader.scope_variable(element),
        },
        "MD5HexAssertion" => {
            SampleAssertion::Md5(reader.compile_property(element, "MD5HexAssertion.size"))
        }
        "XMLAssertion" => SampleAssertion::Xml,
        "JSONPathAssertion" => {
            // The older form of the plugin's element specifies the format of the response.
            if element.text_property("INPUT_FORMAT") == "YAML" {
                reader.report_unsupported(element, "YAML responses are not supported, only JSON");
            }
            let path = reader.compile_property(element, "JSON_PATH");
            if let Some(text) = path.as_literal()
                && let Err(fault) = json_path::check_path(text)
            {
                reader.report_unsupported(element, &fault);
            }
            let expected = reader.compile_property(element, "EXPECTED_VALUE");
            SampleAssertion::Json {
                path,
                expected: element.flag_property("JSONVALIDATION", false).then_some(expected),
                is_regex: element.flag_property("ISREGEX", true),
                expects_null: element.flag_property("EXPECT_NULL", false),
                inverts: element.flag_property("INVERT", false),
                compares_text: false,
            }
        }
        _ => return None,
    };
    if !matches!(element.class, "ResponseAssertion" | "XPathAssertion" | "XPath2Assertion") {
        reader.scope_variable(element);
    }
    reader.report_unread_properties(element);
    Some(assertion)
}

fn compile_response_assertion<'a>(
    reader: &mut JmxElementReader,
    element: &JmxElement<'a>,
) -> SampleAssertion {
    let subject = match element.text_property("Assertion.test_field") {
        "" | "Assertion.response_data" | "Assertion.response_data_as_document" => {
            AssertionSubject::Body
        }
        "Assertion.response_code" => AssertionSubject::Code,
        "Assertion.response_message" => AssertionSubject::Message,
        "Assertion.response_headers" => AssertionSubject::Headers,
        "Assertion.request_headers" => AssertionSubject::RequestHeaders,
        "Assertion.request_data" => AssertionSubject::Request,
        "Assertion.sample_label" => AssertionSubject::Url,
        field => {
            let why = format!("field `{field}` is not supported");
            reader.report_unsupported(element, &why);
            AssertionSubject::Body
        }
    };
    let subject = match element.text_property("Assertion.scope") {
        "variable" => {
            AssertionSubject::Variable(reader.compile_property(element, "Scope.variable"))
        }
        "" | "all" | "parent" => {
            element.ignore_properties(&["Scope.variable"]);
            subject
        }
        scope_name => {
            let why = format!("scope `{scope_name}` is not supported");
            reader.report_unsupported(element, &why);
            subject
        }
    };
    let bits: u32 = element.text_property("Assertion.test_type").trim().parse().unwrap_or(2);
    let comparison = if bits & 1 != 0 {
        TextComparison::Matches
    } else if bits & 8 != 0 {
        TextComparison::Equals
    } else if bits & 16 != 0 {
        TextComparison::Substring
    } else {
        TextComparison::Contains
    };
    // The misspelled name is JMeter's own.
    let list = element
        .find_property("Asserion.test_strings")
        .or_else(|| element.find_property("Assertion.test_strings"));
    element.ignore_properties(&["Assertion.test_strings"]);
    let texts: Vec<TextTemplate> = collection_entries(list, "")
        .iter()
        .map(|text| reader.compile_template(element, text.text().unwrap_or_default()))
        .collect();
    if matches!(comparison, TextComparison::Matches | TextComparison::Contains) {
        for text in &texts {
            reader.check_pattern(element, text);
        }
    }
    SampleAssertion::Response {
        subject,
        comparison,
        is_negated: bits & 4 != 0,
        matches_any: bits & 32 != 0,
        patterns: texts,
        message: reader.compile_property(element, "Assertion.custom_message"),
        assumes_success: element.flag_property("Assertion.assume_success", false),
    }
}

fn compile_size_assertion<'a>(
    reader: &mut JmxElementReader,
    element: &JmxElement<'a>,
) -> SampleAssertion {
    let part = match element.text_property("Assertion.test_field") {
        "SizeAssertion.response_data" | "SizeAssertion.response_body" => SizeSubject::Body,
        "SizeAssertion.response_headers" => SizeSubject::Headers,
        "SizeAssertion.response_code" => SizeSubject::Code,
        "SizeAssertion.response_message" => SizeSubject::Message,
        "" | "SizeAssertion.response_network_size" => SizeSubject::All,
        field => {
            let why = format!("field `{field}` is not supported");
            reader.report_unsupported(element, &why);
            SizeSubject::All
        }
    };
    let order = match element.text_property("SizeAssertion.operator") {
        "2" => SizeComparison::NotEqual,
        "3" => SizeComparison::Greater,
        "4" => SizeComparison::Less,
        "5" => SizeComparison::GreaterOrEqual,
        "6" => SizeComparison::LessOrEqual,
        _ => SizeComparison::Equal,
    };
    SampleAssertion::Size {
        size: reader.compile_property(element, "SizeAssertion.size"),
        comparison: order,
        subject: part,
    }
}
