//! The subset of JMeter's elements that a plan requires, from 1 (the elements of nearly all plans) to 4 (scripts).
//!
//! A plan requires the lowest subset that contains all of its enabled elements and functions; listeners, elements of
//! the editor and disabled elements do not count. The subset indicates how much of JMeter another tool must support to
//! run the plan.

use super::compiler::PlanInventory;

/// The highest subset.
pub const HIGHEST_SUBSET: u8 = 4;

/// Elements and functions of the first subset: threads that send requests in order, with data, and check responses.
const FIRST_SUBSET: &[&str] = &[
    "TestPlan",
    "ThreadGroup",
    "HTTPSamplerProxy",
    "HTTPSampler",
    "HTTPSampler2",
    "ConfigTestElement",
    "HeaderManager",
    "CookieManager",
    "CacheManager",
    "Arguments",
    "CSVDataSet",
    "ResponseAssertion",
    "ConstantTimer",
    "LoopController",
    "TransactionController",
    "GenericController",
    "RecordingController",
];

/// The second: extractors, conditions, other timers and assertions.
const SECOND_SUBSET: &[&str] = &[
    "RegexExtractor",
    "JSONPostProcessor",
    "JSONPathExtractor",
    "BoundaryExtractor",
    "IfController",
    "WhileController",
    "ForeachController",
    "OnceOnlyController",
    "ThroughputController",
    "RandomController",
    "RandomOrderController",
    "InterleaveControl",
    "SwitchController",
    "RunTime",
    "CounterConfig",
    "RandomVariableConfig",
    "UniformRandomTimer",
    "GaussianRandomTimer",
    "PoissonRandomTimer",
    "ConstantThroughputTimer",
    "SyncTimer",
    "DurationAssertion",
    "SizeAssertion",
    "JSONPathAssertion",
    "SetupThreadGroup",
    "PostThreadGroup",
    "TestAction",
    "ResultAction",
    "AuthManager",
    "UserParameters",
    "DNSCacheManager",
    "DebugSampler",
    "JavaSampler",
];

/// The third: markup, modules, the plugins' groups and timers, expressions.
const THIRD_SUBSET: &[&str] = &[
    "XPathExtractor",
    "XPath2Extractor",
    "HtmlExtractor",
    "XPathAssertion",
    "XPath2Assertion",
    "XMLAssertion",
    "MD5HexAssertion",
    "ModuleController",
    "IncludeController",
    "CriticalSectionController",
    "PreciseThroughputTimer",
    "UltimateThreadGroup",
    "SteppingThreadGroup",
    "ConcurrencyThreadGroup",
    "ArrivalsThreadGroup",
    "FreeFormArrivalsThreadGroup",
    "OpenModelThreadGroup",
    "VariableThroughputTimer",
    "RandomCSVDataSetConfig",
    "DummySampler",
    "__jexl2",
    "__jexl3",
    "__javaScript",
    "__groovy",
    "__BeanShell",
];

/// The fourth: small scripts.
const FOURTH_SUBSET: &[&str] = &[
    "JSR223PreProcessor",
    "JSR223PostProcessor",
    "JSR223Sampler",
    "JSR223Assertion",
    "JSR223Timer",
    "JSR223Listener",
    "BeanShellPreProcessor",
    "BeanShellPostProcessor",
    "BeanShellSampler",
    "BeanShellAssertion",
    "BeanShellTimer",
    "BeanShellListener",
];

impl PlanInventory {
    /// Returns the subset that the plan requires; `None` if it requires more than all of them contain.
    #[must_use]
    pub fn required_subset(&self) -> Option<u8> {
        self.element_and_function_names().try_fold(1, |most, name| Some(most.max(subset_of(name)?)))
    }

    /// Returns the elements and functions that are in no subset.
    pub fn unsupported_names(&self) -> impl Iterator<Item = &str> {
        self.element_and_function_names().filter(|name| subset_of(name).is_none())
    }

    fn element_and_function_names(&self) -> impl Iterator<Item = &str> {
        self.elements.keys().chain(self.functions.keys()).map(String::as_str)
    }
}

/// Returns the first subset that contains an element or a function; `None` if none does.
#[must_use]
pub fn subset_of(name: &str) -> Option<u8> {
    if super::compiler::has_no_traffic_effect(name) {
        return Some(1);
    }
    let sets = [FIRST_SUBSET, SECOND_SUBSET, THIRD_SUBSET, FOURTH_SUBSET];
    let matching_set = sets.iter().zip(1..).find(|(set, _)| set.contains(&name));
    match matching_set {
        Some((_, number)) => Some(number),
        // Functions that compute a text belong to the first subset.
        None => super::function_name::JMeterFunction::find(name).map(|_| 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inventory(names: &[&str]) -> PlanInventory {
        let (functions, elements): (Vec<&str>, Vec<&str>) =
            names.iter().partition(|name| name.starts_with("__"));
        let counted = |names: Vec<&str>| names.iter().map(|name| ((*name).to_owned(), 1)).collect();
        PlanInventory {
            elements: counted(elements),
            functions: counted(functions),
            ..PlanInventory::default()
        }
    }

    #[test]
    fn a_plan_is_of_the_lowest_subset_that_holds_it() {
        let check = |names: &[&str], expected: Option<u8>| {
            assert_eq!(inventory(names).required_subset(), expected, "{names:?}");
        };
        check(&[], Some(1));
        check(&["TestPlan", "ThreadGroup", "HTTPSamplerProxy", "__P", "__time"], Some(1));
        check(&["TestPlan", "ResultCollector", "Summariser", "ViewResultsFullVisualizer"], Some(1));
        check(&["TestPlan", "IfController"], Some(2));
        check(&["RegexExtractor", "XPathExtractor"], Some(3));
        check(&["IfController", "__groovy"], Some(3));
        check(&["XPathExtractor", "JSR223PostProcessor"], Some(4));
        check(&["JSR223PostProcessor", "JDBCSampler"], None);
        check(&["TestPlan", "__XPath"], None);
        let beyond: Vec<String> = inventory(&["TestPlan", "JDBCSampler", "__XPath"])
            .unsupported_names()
            .map(str::to_owned)
            .collect();
        assert_eq!(beyond, ["JDBCSampler", "__XPath"]);
    }

    #[test]
    fn nothing_is_in_two_subsets() {
        let mut all: Vec<&str> =
            [FIRST_SUBSET, SECOND_SUBSET, THIRD_SUBSET, FOURTH_SUBSET].concat();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
