//! What a server has, and its answers.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::fault::{
    BAD_CREDENTIALS, LOCAL_ONE, NOT_PREPARED, PROTOCOL_ERROR, SYNTAX_ERROR, UNPREPARED,
};
use super::frames::{self, Body, Fields, Frame};
use super::select::Select;
use super::tables::{About, Key, OF_MOST, OF_ONE, Table, token};
use super::{Connection, Fault, Refusal};

/// Names of consistencies by their numbers.
const CONSISTENCIES: [&str; 11] = [
    "ANY",
    "ONE",
    "TWO",
    "THREE",
    "QUORUM",
    "ALL",
    "LOCAL_QUORUM",
    "EACH_QUORUM",
    "SERIAL",
    "LOCAL_SERIAL",
    "LOCAL_ONE",
];
const ONE: u16 = 1;

/// Kinds of results.
const VOID: i32 = 1;
const ROWS: i32 = 2;
const PREPARED: i32 = 4;

/// Faults for the statements with a text in them.
pub(super) struct Rule {
    pub(super) of: String,
    pub(super) times: usize,
    pub(super) fault: Fault,
}

/// How an answer is sent.
pub(super) enum Answer {
    Whole(Vec<u8>),
    Half(Vec<u8>),
    Later(Vec<u8>),
}

/// What comes with a statement.
struct Parameters {
    consistency: u16,
    values: Vec<Vec<u8>>,
    has_metadata: bool,
    /// The number of rows of a page; `None`: all rows are one.
    page: Option<usize>,
    /// The last row of the page before.
    after: Option<Key>,
}

impl Parameters {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let consistency = fields.short()?;
        let flags = fields.byte()?;
        let mut values = Vec::new();
        if flags & 0x01 != 0 {
            for _ in 0..fields.short()? {
                values.push(fields.bytes()?.to_vec());
            }
        }
        let mut page = None;
        if flags & 0x04 != 0 {
            page = usize::try_from(fields.int()?).ok().filter(|page| *page > 0);
        }
        let mut after = None;
        if flags & 0x08 != 0 {
            let mut state = Fields(fields.bytes()?);
            let token = i64::from_be_bytes(state.take(8)?.try_into().ok()?);
            after = Some((token, state.0.to_vec()));
        }
        Some(Parameters { consistency, values, has_metadata: flags & 0x02 == 0, page, after })
    }
}

type Outcome = Result<(u8, Body), Refusal>;

#[derive(Default)]
pub(super) struct State {
    /// Name and password of the only user; `None`: nobody is asked.
    pub(super) user: Option<(String, String)>,
    pub(super) about: About,
    /// Texts by id.
    pub(super) prepared: HashMap<Vec<u8>, String>,
    pub(super) rules: Vec<Rule>,
    /// Rows of a page at most.
    pub(super) page_max: Option<usize>,
    pub(super) requests: Vec<String>,
    pub(super) not_understood: Vec<String>,
    pub(super) is_serving: bool,
    pub(super) open: Vec<(Arc<Connection>, JoinHandle<()>)>,
    /// Answers that are sent later.
    pub(super) held: Vec<(Arc<Connection>, Vec<u8>)>,
}

impl State {
    pub(super) fn table_mut(&mut self, name: &str) -> &mut Table {
        self.about.tables.get_mut(name).unwrap_or_else(|| panic!("there is no table {name}"))
    }

    pub(super) fn answer(&mut self, request: &Frame, is_known: &mut bool) -> Answer {
        let mut fault = None;
        let outcome = match request.opcode {
            frames::PREPARE | frames::EXECUTE | frames::QUERY if *is_known => {
                self.answer_statement(request, &mut fault)
            }
            _ => self.answer_greeting(request, is_known),
        };
        let (opcode, body) = outcome.unwrap_or_else(|refusal| (frames::ERROR, refusal.body()));
        let bytes = request.answer(opcode, &body);
        match fault {
            Some(Fault::Cut) => Answer::Half(bytes),
            Some(Fault::Silence) => Answer::Later(bytes),
            Some(Fault::NoFrame) => Answer::Whole(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
            _ => Answer::Whole(bytes),
        }
    }

    fn answer_greeting(&self, request: &Frame, is_known: &mut bool) -> Outcome {
        let mut body = Body::default();
        match request.opcode {
            frames::OPTIONS => {
                body.short(2).string("CQL_VERSION").short(1).string("3.4.7");
                body.string("COMPRESSION").short(0);
                Ok((frames::SUPPORTED, body))
            }
            frames::STARTUP if !*is_known => {
                body.string("org.apache.cassandra.auth.PasswordAuthenticator");
                Ok((frames::AUTHENTICATE, body))
            }
            frames::AUTH_RESPONSE => {
                self.check_password(&request.body)?;
                *is_known = true;
                body.bytes(None);
                Ok((frames::AUTH_SUCCESS, body))
            }
            frames::STARTUP => Ok((frames::READY, body)),
            frames::REGISTER if *is_known => Ok((frames::READY, body)),
            opcode => {
                let message = format!("Unexpected message with opcode {opcode}");
                Err(Refusal::new(PROTOCOL_ERROR, message))
            }
        }
    }

    fn check_password(&self, body: &[u8]) -> Result<(), Refusal> {
        let said = Fields(body).text().ok_or_else(Refusal::malformed)?;
        let mut words = said.split('\0').skip(1);
        let (name, password) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let right = self.user.as_ref();
        if right.is_some_and(|(user, word)| user == name && word == password) {
            return Ok(());
        }
        let message = format!("Provided username {name} and/or password are incorrect");
        Err(Refusal::new(BAD_CREDENTIALS, message))
    }

    fn answer_statement(&mut self, request: &Frame, fault: &mut Option<Fault>) -> Outcome {
        let mut fields = Fields(&request.body);
        match request.opcode {
            frames::PREPARE => self.prepare(fields.text().ok_or_else(Refusal::malformed)?),
            frames::EXECUTE => {
                let id = fields.short_bytes().ok_or_else(Refusal::malformed)?;
                let mut outcome = match self.prepared.get(id).cloned() {
                    Some(text) => self.execute(&text, fields, fault),
                    None => Err(Refusal::new(UNPREPARED, NOT_PREPARED)),
                };
                if let Err(refusal) = &mut outcome
                    && refusal.code == UNPREPARED
                {
                    let mut extra = Body::default();
                    extra.short_bytes(id);
                    refusal.extra = extra.0;
                }
                outcome
            }
            _ => {
                let text = fields.text().ok_or_else(Refusal::malformed)?;
                self.execute(text, fields, fault)
            }
        }
    }

    fn understand(&mut self, text: &str) -> Result<Select, Refusal> {
        Select::parse(text).ok_or_else(|| {
            self.not_understood.push(text.to_owned());
            Refusal::new(SYNTAX_ERROR, format!("line 1:0 no viable alternative at input '{text}'"))
        })
    }

    fn table(&self, select: &Select) -> Result<Cow<'_, Table>, Refusal> {
        let (keyspace, name) = (&select.keyspace, &select.table);
        let found: Option<Cow<'_, Table>> = if is_of_system(select) {
            self.about.of_system(keyspace, name).map(Cow::Owned)
        } else if self.about.keyspace.as_ref() == Some(keyspace) {
            self.about.tables.get(name).map(Cow::Borrowed)
        } else {
            return Err(Refusal::invalid(format!("keyspace {keyspace} does not exist")));
        };
        found.ok_or_else(|| Refusal::invalid(format!("table {name} does not exist")))
    }

    fn prepare(&mut self, text: &str) -> Outcome {
        let select = self.understand(text)?;
        let halves = [token(text.as_bytes()), text.len() as i64].map(i64::to_be_bytes);
        let id = halves.concat();
        let body = self.describe(&id, &select)?;
        self.prepared.insert(id, text.to_owned());
        Ok((frames::RESULT, body))
    }

    /// The answer to the wish to prepare a statement.
    fn describe(&self, id: &[u8], select: &Select) -> Result<Body, Refusal> {
        let table = self.table(select)?;
        let columns = table.selected(select).map_err(Refusal::invalid)?;
        let bound = table.bound(select).map_err(Refusal::invalid)?;
        let key = table.key_place(select);
        let mut body = Body::default();
        body.int(PREPARED).short_bytes(id).int(1).int(bound.len() as i32);
        body.int(i32::from(key.is_some()));
        if let Some(key) = key {
            body.short(key);
        }
        put_columns(&mut body, select, &bound);
        put_metadata(&mut body, select, &columns, true, None);
        Ok(body)
    }

    fn execute(
        &mut self,
        text: &str,
        mut fields: Fields<'_>,
        fault: &mut Option<Fault>,
    ) -> Outcome {
        let asked = Parameters::read(&mut fields).ok_or_else(Refusal::malformed)?;
        let select = self.understand(text)?;
        if !is_of_system(&select) {
            let consistency = CONSISTENCIES.get(usize::from(asked.consistency)).unwrap_or(&"?");
            self.requests.push(format!("{consistency} {text}"));
            *fault = self.next_fault(text);
        }
        match fault {
            Some(Fault::Error(refusal)) => Err(refusal.clone()),
            Some(Fault::NoRows) => {
                let mut body = Body::default();
                body.int(VOID);
                Ok((frames::RESULT, body))
            }
            _ => Ok((frames::RESULT, self.rows(&select, &asked, fault.as_ref())?)),
        }
    }

    fn next_fault(&mut self, text: &str) -> Option<Fault> {
        let is_for = |rule: &&mut Rule| rule.times > 0 && text.contains(&rule.of);
        let rule = self.rules.iter_mut().find(is_for)?;
        rule.times -= 1;
        Some(rule.fault.clone())
    }

    /// A page of rows.
    fn rows(
        &self,
        select: &Select,
        asked: &Parameters,
        fault: Option<&Fault>,
    ) -> Result<Body, Refusal> {
        let table = self.table(select)?;
        let columns = table.selected(select).map_err(Refusal::invalid)?;
        let wanted = select
            .wanted(&asked.values)
            .ok_or_else(|| Refusal::invalid("Invalid amount of bind variables".to_owned()))?;
        let copy = if [ONE, LOCAL_ONE].contains(&asked.consistency) { OF_ONE } else { OF_MOST };
        let most = asked.page.map(|page| page.min(self.page_max.unwrap_or(page)));
        let (mut rows, mut count, mut last) = (Body::default(), 0, None);
        let found = table.rows(copy, &wanted, asked.after.as_ref());
        for (key, cells) in found.take(most.unwrap_or(usize::MAX)) {
            for (nth, (name, is_write_time)) in select.columns.iter().enumerate() {
                match (cells.get(name), fault) {
                    (_, Some(Fault::Other(bytes))) if nth == 0 => rows.bytes(Some(bytes)),
                    (Some((_, written)), _) if *is_write_time => {
                        rows.bytes(Some(&written.to_be_bytes()))
                    }
                    (Some((bytes, _)), _) => rows.bytes(Some(bytes)),
                    (None, _) => rows.bytes(None),
                };
            }
            (count, last) = (count + 1, Some(key));
        }
        // As Cassandra, it says that a page may follow if this one is full.
        let more = last.filter(|_| most == Some(count));
        if matches!(fault, Some(Fault::WrongLength)) {
            (count, rows) = (1, Body::default());
            rows.int(i32::MAX);
        }
        let mut body = Body::default();
        body.int(ROWS);
        put_metadata(&mut body, select, &columns, asked.has_metadata, more);
        body.int(count as i32).0.append(&mut rows.0);
        Ok(body)
    }
}

fn is_of_system(select: &Select) -> bool {
    ["system", "system_schema"].contains(&&*select.keyspace)
}

/// Name and type of each column, after the table that all are of.
fn put_columns(body: &mut Body, select: &Select, columns: &[(String, String)]) {
    body.string(&select.keyspace).string(&select.table);
    for (name, kind) in columns {
        body.string(name).kind(kind);
    }
}

/// Writes the columns of the rows in an answer, unless the client knows them, and where the next page begins.
fn put_metadata(
    body: &mut Body,
    select: &Select,
    columns: &[(String, String)],
    is_wanted: bool,
    more: Option<&Key>,
) {
    let flags = if is_wanted { 0x01 } else { 0x04 };
    let more = more.map(|(token, key)| [&token.to_be_bytes()[..], key].concat());
    body.int(flags | if more.is_some() { 0x02 } else { 0 }).int(columns.len() as i32);
    if more.is_some() {
        body.bytes(more.as_deref());
    }
    if is_wanted {
        put_columns(body, select, columns);
    }
}
