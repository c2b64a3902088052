//! Small plans of JMeter, written by tests.

use crate::origin_server::OriginServer;

/// Returns a plan with one thread group that holds `inside`.
#[must_use]
pub fn plan(loops: &str, threads: &str, inside: &str) -> String {
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<jmeterTestPlan version="1.2" properties="5.0" jmeter="5.6.3"><hashTree>
<TestPlan guiclass="TestPlanGui" testclass="TestPlan" testname="p" enabled="true"/><hashTree>
<ThreadGroup guiclass="ThreadGroupGui" testclass="ThreadGroup" testname="g" enabled="true">
<stringProp name="ThreadGroup.on_sample_error">continue</stringProp>
<elementProp name="ThreadGroup.main_controller" elementType="LoopController"><boolProp name="LoopController.continue_forever">false</boolProp><stringProp name="LoopController.loops">{loops}</stringProp></elementProp>
<stringProp name="ThreadGroup.num_threads">{threads}</stringProp><stringProp name="ThreadGroup.ramp_time">0</stringProp>
</ThreadGroup><hashTree>
{inside}
</hashTree></hashTree></hashTree></jmeterTestPlan>"#
    )
}

/// Returns a sampler that gets `path`, with `inside` below it.
#[must_use]
pub fn sampler(path: &str, inside: &str) -> String {
    format!(
        r#"<HTTPSamplerProxy guiclass="HttpTestSampleGui" testclass="HTTPSamplerProxy" testname="GET {path}" enabled="true">
<stringProp name="HTTPSampler.path">{path}</stringProp><stringProp name="HTTPSampler.method">GET</stringProp>
<boolProp name="HTTPSampler.follow_redirects">true</boolProp><boolProp name="HTTPSampler.use_keepalive">true</boolProp>
</HTTPSamplerProxy><hashTree>{inside}</hashTree>"#
    )
}

/// Returns an element with properties given as `name=value`; `true` and `false` are switches.
#[must_use]
pub fn element(class: &str, name: &str, properties: &[(&str, &str)], inside: &str) -> String {
    let mut text = format!(
        r#"<{class} guiclass="{class}Gui" testclass="{class}" testname="{name}" enabled="true">"#
    );
    for (key, value) in properties {
        let kind = if matches!(*value, "true" | "false") { "boolProp" } else { "stringProp" };
        text.push_str(&format!(r#"<{kind} name="{key}">{value}</{kind}>"#));
    }
    format!("{text}</{class}><hashTree>{inside}</hashTree>")
}

/// Returns the defaults of HTTP requests: the address of an origin.
#[must_use]
pub fn defaults(origin: &OriginServer) -> String {
    format!(
        r#"<ConfigTestElement guiclass="HttpDefaultsGui" testclass="ConfigTestElement" testname="d" enabled="true">
<stringProp name="HTTPSampler.domain">127.0.0.1</stringProp><stringProp name="HTTPSampler.port">{}</stringProp></ConfigTestElement><hashTree/>"#,
        origin.addr().port()
    )
}

/// Returns what gets a page of the origin.
#[must_use]
pub fn get(origin: &OriginServer, path: &str) -> String {
    format!("{}{}", defaults(origin), sampler(path, ""))
}
