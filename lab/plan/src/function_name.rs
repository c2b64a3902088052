//! The names of JMeter's functions.

/// A function by its JMeter name without the two leading underscores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JMeterFunction {
    Property,
    SetProperty,
    ShortProperty,
    Random,
    RandomString,
    Uuid,
    Time,
    TimeShift,
    ThreadNumber,
    ThreadGroupName,
    ThreadName,
    SamplerName,
    TestPlanName,
    IterationNumber,
    Counter,
    Variable,
    Evaluate,
    EvaluateVariable,
    Jexl,
    JavaScript,
    Groovy,
    BeanShell,
    Base64Encode,
    Base64Decode,
    UrlEncode,
    UrlDecode,
    EscapeHtml,
    Lowercase,
    Uppercase,
    ChangeCase,
    IsVariable,
    IsProperty,
    Split,
    Sum,
    MachineName,
    MachineAddress,
    Character,
    Log,
    LogOnly,
    ConvertTime,
    RandomDate,
    Digest,
    RandomOfVariables,
    Regex,
    Unescape,
    UnescapeHtml,
    EscapeXml,
    EscapePattern,
    Length,
    Substring,
    Choose,
    FileText,
    FileLine,
    FileRow,
}

impl JMeterFunction {
    /// Finds a function by its name.
    pub(crate) fn find(name: &str) -> Option<Self> {
        Some(match name {
            "__property" => Self::Property,
            "__P" => Self::ShortProperty,
            "__setProperty" => Self::SetProperty,
            "__Random" => Self::Random,
            "__RandomString" => Self::RandomString,
            "__UUID" => Self::Uuid,
            "__time" => Self::Time,
            "__timeShift" => Self::TimeShift,
            "__threadNum" => Self::ThreadNumber,
            "__threadGroupName" => Self::ThreadGroupName,
            "__threadName" => Self::ThreadName,
            "__samplerName" => Self::SamplerName,
            "__TestPlanName" => Self::TestPlanName,
            "__iterationNum" => Self::IterationNumber,
            "__counter" => Self::Counter,
            "__V" => Self::Variable,
            "__eval" => Self::Evaluate,
            "__evalVar" => Self::EvaluateVariable,
            "__jexl3" | "__jexl2" => Self::Jexl,
            "__javaScript" => Self::JavaScript,
            "__groovy" => Self::Groovy,
            "__BeanShell" => Self::BeanShell,
            "__base64Encode" => Self::Base64Encode,
            "__base64Decode" => Self::Base64Decode,
            "__urlencode" => Self::UrlEncode,
            "__urldecode" => Self::UrlDecode,
            "__escapeHtml" => Self::EscapeHtml,
            "__lowercase" => Self::Lowercase,
            "__uppercase" => Self::Uppercase,
            "__changeCase" => Self::ChangeCase,
            "__isVarDefined" => Self::IsVariable,
            "__isPropDefined" => Self::IsProperty,
            "__split" => Self::Split,
            "__intSum" | "__longSum" => Self::Sum,
            "__machineName" => Self::MachineName,
            "__machineIP" => Self::MachineAddress,
            "__char" => Self::Character,
            "__log" => Self::Log,
            "__logn" => Self::LogOnly,
            "__dateTimeConvert" => Self::ConvertTime,
            "__RandomDate" => Self::RandomDate,
            "__digest" => Self::Digest,
            "__RandomFromMultipleVars" => Self::RandomOfVariables,
            "__regexFunction" => Self::Regex,
            "__unescape" => Self::Unescape,
            "__unescapeHtml" => Self::UnescapeHtml,
            "__escapeXml" => Self::EscapeXml,
            "__escapeOroRegexpChars" => Self::EscapePattern,
            "__strLen" => Self::Length,
            "__substring" => Self::Substring,
            "__chooseRandom" => Self::Choose,
            "__FileToString" => Self::FileText,
            "__StringFromFile" | "_StringFromFile" => Self::FileLine,
            "__CSVRead" => Self::FileRow,
            _ => return None,
        })
    }
}

/// Returns true if an unsupported function belongs to JMeter or to a widely used plugin.
pub(super) fn is_unsupported_function(name: &str) -> bool {
    matches!(
        name,
        "__XPath"
            | "__StringToFile"
            | "__caseFormat"
            | "__doubleSum"
            | "__env"
            | "__if"
            | "__isDefined"
            | "__MD5"
            | "__strReplace"
            | "__strReplaceRegex"
            | "__tstFeedback"
    )
}
