//! What a script is made of.

/// Statements in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Block(pub(super) Vec<Statement>);

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Statement {
    Evaluate(Expression),
    /// A new name; its value.
    Declare(String, Option<Expression>),
    If(Expression, Block, Block),
    While(Expression, Block),
    For {
        first: Block,
        condition: Option<Expression>,
        after: Vec<Expression>,
        body: Block,
    },
    ForEach(String, Expression, Block),
    Return(Option<Expression>),
    Break,
    Continue,
    Nested(Block),
    /// What is tried, and what follows a failure: the name of the exception, and the block.
    Try(Block, Option<(String, Block)>, Block),
    Throw(Expression),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expression {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(String),
    /// A text with expressions in it.
    Filled(Vec<Expression>),
    Name(String),
    List(Vec<Expression>),
    /// A name, or a place in a list or in `vars`; the operator, `=` or one of `+=`; the value.
    Assign(Box<Expression>, Operator, Box<Expression>),
    /// The target; by how much; whether the value before is meant.
    Step(Box<Expression>, i64, bool),
    Binary(Operator, Box<Expression>, Box<Expression>),
    Not(Box<Expression>),
    Negate(Box<Expression>),
    Choice(Box<Expression>, Box<Expression>, Box<Expression>),
    /// The value unless it is nothing, else the other.
    Elvis(Box<Expression>, Box<Expression>),
    Index(Box<Expression>, Box<Expression>),
    Property(Box<Expression>, String),
    /// The receiver, the method, the arguments.
    Call(Box<Expression>, String, Vec<Expression>),
    /// A property or a call that is nothing where its receiver is nothing.
    Safe(Box<Expression>),
    /// A static method: the class without its package.
    Static(String, String, Vec<Expression>),
    New(String, Vec<Expression>),
    Cast(String, Box<Expression>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Set,
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
    Find,
    Matches,
}
