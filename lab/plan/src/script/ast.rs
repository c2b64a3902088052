//! The syntax tree of a script.

/// Statements in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ScriptBlock(pub(super) Vec<ScriptStatement>);

#[derive(Debug, Clone, PartialEq)]
pub(super) enum ScriptStatement {
    Evaluate(ScriptExpression),
    /// A declaration: name and value.
    Declare(String, Option<ScriptExpression>),
    If(ScriptExpression, ScriptBlock, ScriptBlock),
    While(ScriptExpression, ScriptBlock),
    For {
        init: ScriptBlock,
        condition: Option<ScriptExpression>,
        update: Vec<ScriptExpression>,
        body: ScriptBlock,
    },
    ForEach(String, ScriptExpression, ScriptBlock),
    Return(Option<ScriptExpression>),
    Break,
    Continue,
    Nested(ScriptBlock),
    /// The try block; the name of the exception and the catch block; and the finally block.
    Try(ScriptBlock, Option<(String, ScriptBlock)>, ScriptBlock),
    Throw(ScriptExpression),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum ScriptExpression {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(String),
    /// A string with embedded expressions.
    Interpolated(Vec<ScriptExpression>),
    Name(String),
    List(Vec<ScriptExpression>),
    /// The target (a name, or an element of a list or of `vars`); the operator, `=` or one of `+=`; the value.
    Assign(Box<ScriptExpression>, ScriptOperator, Box<ScriptExpression>),
    /// The target; the increment; true if the previous value is returned.
    Increment(Box<ScriptExpression>, i64, bool),
    Binary(ScriptOperator, Box<ScriptExpression>, Box<ScriptExpression>),
    Not(Box<ScriptExpression>),
    Negate(Box<ScriptExpression>),
    Conditional(Box<ScriptExpression>, Box<ScriptExpression>, Box<ScriptExpression>),
    /// The value unless it is null, otherwise the alternative.
    Elvis(Box<ScriptExpression>, Box<ScriptExpression>),
    Index(Box<ScriptExpression>, Box<ScriptExpression>),
    Property(Box<ScriptExpression>, String),
    /// The receiver, the method, the arguments.
    Call(Box<ScriptExpression>, String, Vec<ScriptExpression>),
    /// A property or a call that is null if its receiver is null.
    SafeNavigation(Box<ScriptExpression>),
    /// A static method: the class without its package.
    StaticCall(String, String, Vec<ScriptExpression>),
    New(String, Vec<ScriptExpression>),
    Cast(String, Box<ScriptExpression>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScriptOperator {
    Assign,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    And,
    Or,
    RegexFind,
    RegexMatch,
}
