"""Writes JMeter plans: one thread group by `threads`, `rampup` and `duration`, transactions of HTTP samplers."""
from xml.sax.saxutils import escape

HOST, PORT = "aem-publish.local", "8080"


def argument(name, value):
    return (f'<elementProp name="{name}" elementType="HTTPArgument"><boolProp name="HTTPArgument.always_encode">false</boolProp>'
            f'<stringProp name="Argument.value">{escape(value)}</stringProp><stringProp name="Argument.metadata">=</stringProp>'
            f'<boolProp name="HTTPArgument.use_equals">true</boolProp><stringProp name="Argument.name">{name}</stringProp></elementProp>')


def arguments(values):
    inner = "".join(argument(name, value) for name, value in values.items())
    return ('<elementProp name="HTTPsampler.Arguments" elementType="Arguments">'
            f'<collectionProp name="Arguments.arguments">{inner}</collectionProp></elementProp>')


def sampler(path, method="GET", headers=None):
    """One request."""
    written = "".join(
        f'<elementProp name="" elementType="Header"><stringProp name="Header.name">{name}</stringProp>'
        f'<stringProp name="Header.value">{escape(value)}</stringProp></elementProp>'
        for name, value in (headers or {}).items())
    return (f'<HTTPSamplerProxy guiclass="HttpTestSampleGui" testclass="HTTPSamplerProxy" testname="{escape(path)}" enabled="true">'
            f'{arguments({})}<stringProp name="HTTPSampler.domain">{HOST}</stringProp>'
            f'<stringProp name="HTTPSampler.port">{PORT}</stringProp><stringProp name="HTTPSampler.path">{escape(path)}</stringProp>'
            f'<stringProp name="HTTPSampler.method">{method}</stringProp>'
            '<boolProp name="HTTPSampler.follow_redirects">true</boolProp><boolProp name="HTTPSampler.use_keepalive">true</boolProp>'
            '</HTTPSamplerProxy><hashTree>'
            '<HeaderManager guiclass="HeaderPanel" testclass="HeaderManager" testname="HTTP Header Manager" enabled="true">'
            f'<collectionProp name="HeaderManager.headers">{written}</collectionProp></HeaderManager><hashTree/></hashTree>')


def transaction(name, samplers):
    return (f'<TransactionController guiclass="TransactionControllerGui" testclass="TransactionController" testname="{name}" '
            'enabled="true"><boolProp name="TransactionController.includeTimers">false</boolProp>'
            '<boolProp name="TransactionController.parent">false</boolProp></TransactionController>'
            f'<hashTree>{"".join(samplers)}</hashTree>')


def write(file, name, transactions, defaults):
    """Writes a plan; `defaults` are parameters that every request carries."""
    inner = "".join(transaction(title, samplers) for title, samplers in transactions)
    text = f"""<?xml version="1.0" encoding="UTF-8"?>
<jmeterTestPlan version="1.2" properties="5.0" jmeter="5.3"><hashTree>
<TestPlan guiclass="TestPlanGui" testclass="TestPlan" testname="{name}" enabled="true">
<boolProp name="TestPlan.functional_mode">false</boolProp><boolProp name="TestPlan.serialize_threadgroups">false</boolProp>
<elementProp name="TestPlan.user_defined_variables" elementType="Arguments"><collectionProp name="Arguments.arguments"/></elementProp>
</TestPlan><hashTree>
<ConfigTestElement guiclass="HttpDefaultsGui" testclass="ConfigTestElement" testname="HTTP Request Defaults" enabled="true">
{arguments(defaults)}<stringProp name="HTTPSampler.implementation">HttpClient4</stringProp>
<stringProp name="HTTPSampler.connect_timeout">60000</stringProp><stringProp name="HTTPSampler.response_timeout">60000</stringProp>
</ConfigTestElement><hashTree/>
<CookieManager guiclass="CookiePanel" testclass="CookieManager" testname="HTTP Cookie Manager" enabled="true">
<collectionProp name="CookieManager.cookies"/><boolProp name="CookieManager.clearEachIteration">false</boolProp></CookieManager><hashTree/>
<ThreadGroup guiclass="ThreadGroupGui" testclass="ThreadGroup" testname="Thread Group" enabled="true">
<stringProp name="ThreadGroup.on_sample_error">continue</stringProp>
<elementProp name="ThreadGroup.main_controller" elementType="LoopController" guiclass="LoopControlPanel" testclass="LoopController" enabled="true">
<boolProp name="LoopController.continue_forever">false</boolProp><intProp name="LoopController.loops">-1</intProp></elementProp>
<stringProp name="ThreadGroup.num_threads">${{__P(threads,)}}</stringProp><stringProp name="ThreadGroup.ramp_time">${{__P(rampup,)}}</stringProp>
<boolProp name="ThreadGroup.scheduler">true</boolProp><stringProp name="ThreadGroup.duration">${{__P(duration,)}}</stringProp>
<stringProp name="ThreadGroup.delay">0</stringProp></ThreadGroup><hashTree>{inner}</hashTree>
<Summariser guiclass="SummariserGui" testclass="Summariser" testname="Generate Summary Results" enabled="true"/><hashTree/>
</hashTree></hashTree></jmeterTestPlan>
"""
    with open(file, "w") as out:
        out.write(text)
    return file
