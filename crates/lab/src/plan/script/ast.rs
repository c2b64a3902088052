//! What a script is made of.

/// Statements in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ScriptBlock(pub(super) Vec<ScriptStatement>);

#[derive(Debug, Clone, PartialEq)]
pub(super) enum ScriptStatement {
    Evaluate(ScriptExpression),
    /// A new name; its value.
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
    /// What is tried, and what follows a failure: the name of the exception, and the block.
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
    /// A text with expressions in it.
    Interpolated(Vec<ScriptExpression>),
    Name(String),
    List(Vec<ScriptExpression>),
    /// A name, or a place in a list or in `vars`; the operator, `=` or one of `+=`; the value.
    Assign(Box<ScriptExpression>, ScriptOperator, Box<ScriptExpression>),
    /// The target; by how much; whether the value before is meant.
    Increment(Box<ScriptExpression>, i64, bool),
    Binary(ScriptOperator, Box<ScriptExpression>, Box<ScriptExpression>),
    Not(Box<ScriptExpression>),
    Negate(Box<ScriptExpression>),
    Conditional(Box<ScriptExpression>, Box<ScriptExpression>, Box<ScriptExpression>),
    /// The value unless it is nothing, else the other.
    Elvis(Box<ScriptExpression>, Box<ScriptExpression>),
    Index(Box<ScriptExpression>, Box<ScriptExpression>),
    Property(Box<ScriptExpression>, String),
    /// The receiver, the method, the arguments.
    Call(Box<ScriptExpression>, String, Vec<ScriptExpression>),
    /// A property or a call that is nothing where its receiver is nothing.
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
