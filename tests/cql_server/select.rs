//! The statements that belady and its driver make.

use std::iter::Peekable;
use std::vec::IntoIter;

enum Token {
    /// A keyword, or a name without quotes, in small letters.
    Word(String),
    /// A name in quotes.
    Quoted(String),
    /// A text.
    Text(String),
    Sign(String),
}

/// `COLUMN = ?`, `COLUMN IN ?`, `token(COLUMN) > ?` or `token(COLUMN) <= ?`.
pub(super) struct Condition {
    pub(super) column: String,
    pub(super) operator: String,
    /// `None`: it comes with the request.
    pub(super) value: Option<String>,
}

impl Condition {
    pub(super) fn is_of_token(&self) -> bool {
        [">", "<="].contains(&&*self.operator)
    }
}

pub(super) struct Select {
    pub(super) keyspace: String,
    pub(super) table: String,
    /// Names of columns, and whether their write times are asked for.
    pub(super) columns: Vec<(String, bool)>,
    pub(super) conditions: Vec<Condition>,
}

impl Select {
    /// `None`: the text is no statement of these.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parser = Parser(tokens(text)?.into_iter().peekable());
        parser.word("select")?;
        let mut columns = vec![parser.selected()?];
        while parser.sign(",").is_some() {
            columns.push(parser.selected()?);
        }
        parser.word("from")?;
        let keyspace = parser.name()?;
        parser.sign(".")?;
        let table = parser.name()?;
        let mut conditions = Vec::new();
        let mut word = "where";
        while parser.word(word).is_some() {
            conditions.push(parser.condition()?);
            word = "and";
        }
        let is_all = parser.0.next().is_none();
        is_all.then_some(Select { keyspace, table, columns, conditions })
    }

    /// Each condition with its value. `None`: a value is missing.
    pub(super) fn wanted<'a>(
        &'a self,
        values: &'a [Vec<u8>],
    ) -> Option<Vec<(&'a Condition, &'a [u8])>> {
        let mut values = values.iter();
        let mut wanted = Vec::new();
        for condition in &self.conditions {
            let value = match &condition.value {
                Some(text) => text.as_bytes(),
                None => values.next()?.as_slice(),
            };
            wanted.push((condition, value));
        }
        Some(wanted)
    }
}

struct Parser(Peekable<IntoIter<Token>>);

impl Parser {
    fn word(&mut self, wanted: &str) -> Option<Token> {
        self.0.next_if(|token| matches!(token, Token::Word(word) if word == wanted))
    }

    fn sign(&mut self, wanted: &str) -> Option<Token> {
        self.0.next_if(|token| matches!(token, Token::Sign(sign) if sign == wanted))
    }

    fn name(&mut self) -> Option<String> {
        match self.0.next()? {
            Token::Word(name) | Token::Quoted(name) => Some(name),
            Token::Text(_) | Token::Sign(_) => None,
        }
    }

    /// The name between parentheses.
    fn argument(&mut self) -> Option<String> {
        self.sign("(")?;
        let name = self.name()?;
        self.sign(")")?;
        Some(name)
    }

    fn selected(&mut self) -> Option<(String, bool)> {
        match self.word("writetime") {
            Some(_) => Some((self.argument()?, true)),
            None => Some((self.name()?, false)),
        }
    }

    fn condition(&mut self) -> Option<Condition> {
        let is_of_token = self.word("token").is_some();
        let column = if is_of_token { self.argument()? } else { self.name()? };
        let operator = match self.0.next()? {
            Token::Word(word) if word == "in" => word,
            Token::Sign(sign) if [">", "<=", "="].contains(&&*sign) => sign,
            _ => return None,
        };
        let value = match self.0.next()? {
            Token::Sign(sign) if sign == "?" => None,
            Token::Text(text) => Some(text),
            _ => return None,
        };
        let condition = Condition { column, operator, value };
        (condition.is_of_token() == is_of_token).then_some(condition)
    }
}

fn tokens(text: &str) -> Option<Vec<Token>> {
    let is_of_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, after) = if first == '"' {
            let (name, after) = enclosed(rest, first)?;
            (Token::Quoted(name), after)
        } else if first == '\'' {
            let (text, after) = enclosed(rest, first)?;
            (Token::Text(text), after)
        } else if is_of_word(first) {
            let end = rest.find(|letter: char| !is_of_word(letter)).unwrap_or(rest.len());
            (Token::Word(rest[..end].to_ascii_lowercase()), &rest[end..])
        } else {
            let length = if rest.starts_with("<=") { 2 } else { first.len_utf8() };
            (Token::Sign(rest[..length].to_owned()), &rest[length..])
        };
        found.push(token);
        rest = after.trim_start();
    }
    Some(found)
}

/// Splits a text that begins with a quote: the quoted part, and the rest. Quotes within are doubled.
fn enclosed(text: &str, quote: char) -> Option<(String, &str)> {
    let mut inside = String::new();
    let mut rest = text.strip_prefix(quote)?;
    loop {
        let (part, after) = rest.split_once(quote)?;
        inside.push_str(part);
        match after.strip_prefix(quote) {
            Some(more) => {
                inside.push(quote);
                rest = more;
            }
            None => return Some((inside, after)),
        }
    }
}
