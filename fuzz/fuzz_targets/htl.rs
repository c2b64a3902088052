//! Scripts of the HTML Template Language: each is refused, or ends within its budget.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_htl::{
    HostError, HtlBudget, HtlDate, HtlHost, HtlLimits, HtlScript, HtlUseRequest, HtlUseResult,
    HtlValue, ResourceInclusion, ScriptInclusion,
};

struct FuzzHost;

impl HtlHost for FuzzHost {
    fn global(&mut self, name: &str) -> Result<Option<HtlValue>, HostError> {
        let list = || HtlValue::list(["x".into(), 1.into(), HtlValue::Null, 2.5.into()]);
        Ok(match name {
            "a" => Some(list()),
            "b" => Some(HtlValue::map([("c", "<d>&\"'".into()), ("href", "javascript:x".into())])),
            "d" => Some(HtlDate { millis: 1_700_000_000_000, offset_minutes: 90 }.into()),
            "n" => Some((-1234.5).into()),
            _ => None,
        })
    }

    fn use_object(&mut self, request: &HtlUseRequest<'_>) -> Result<HtlUseResult, HostError> {
        let options = request.options.iter();
        let options = options.map(|(name, value)| (name.to_owned(), value.clone()));
        Ok(HtlUseResult::Object(HtlValue::map(options)))
    }

    fn include_resource(
        &mut self,
        inclusion: &ResourceInclusion<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), HostError> {
        out.extend(inclusion.selectors(&["s"]).concat().bytes());
        Ok(())
    }

    fn include_script(
        &mut self,
        inclusion: &ScriptInclusion<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), HostError> {
        out.extend_from_slice(inclusion.path.as_bytes());
        Ok(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let Ok(script) = HtlScript::compile("fuzz.html", source) else { return };
    let limits = HtlLimits { steps: 20_000, output_bytes: 50_000, depth: 30 };
    let mut out = Vec::new();
    let result = script.render(&mut FuzzHost, &HtlBudget::new(limits), &mut out);
    assert!(out.len() <= 50_000 + source.len());
    if result.is_ok() && !source.contains("${") && !source.contains("<!--/*") {
        let lower = source.to_ascii_lowercase();
        if !lower.contains("data-sly-") && !lower.contains("sly") {
            assert_eq!(out, bytes);
        }
    }
});
