//! The driver of Cassandra alone, and what belady makes of it.
//!
//! The table of the listing is `metadata (id uuid PRIMARY KEY, directory text, name text, bytes int)`, that of the bytes
//! is `data (id uuid PRIMARY KEY, data blob)`. Name and password are in CASSANDRA_USERNAME and CASSANDRA_PASSWORD.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use belady::config::{SourceConfig, View};
use belady::source::{Location, Opening, Source};
use belady::sync::Mutex;
use clap::Args;
use scylla::client::PoolSize;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::cluster::metadata::ColumnType;
use scylla::deserialize::value::DeserializeValue;
use scylla::deserialize::{DeserializationError, FrameSlice, TypeCheckError};
use scylla::response::PagingState;
use scylla::serialize::SerializationError;
use scylla::serialize::value::SerializeValue;
use scylla::serialize::writers::{CellWriter, WrittenCellProof};
use serde_json::Value;

use crate::{Failure, each, time_reads};

/// Where both tables are.
#[derive(Debug, Args)]
pub(super) struct Tables {
    /// HOST:PORT of a node.
    node: String,
    /// The keyspace of both tables.
    keyspace: String,
}

/// As in belady.
const CONNECTIONS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(7);
const RANGES: u64 = 256;
const RANGES_AT_ONCE: u64 = 16;

/// Files of a directory.
const FOLDER: u64 = 1000;

/// A uuid.
#[derive(Clone, Copy)]
pub(super) struct Id([u8; 16]);

impl SerializeValue for Id {
    fn serialize<'b>(
        &self,
        _type: &ColumnType,
        writer: CellWriter<'b>,
    ) -> Result<WrittenCellProof<'b>, SerializationError> {
        writer.set_value(&self.0).map_err(SerializationError::new)
    }
}

impl<'frame, 'metadata> DeserializeValue<'frame, 'metadata> for Id {
    fn type_check(_type: &ColumnType) -> Result<(), TypeCheckError> {
        Ok(())
    }

    fn deserialize(
        _type: &'metadata ColumnType<'metadata>,
        cell: Option<FrameSlice<'frame>>,
    ) -> Result<Self, DeserializationError> {
        let id = cell.and_then(|cell| cell.as_slice().try_into().ok());
        let missing = || DeserializationError::new(std::fmt::Error);
        id.map(Id).ok_or_else(missing)
    }
}

/// A row as a user of the driver has it.
pub(super) type Row = (Id, String, String, i32, i64);

async fn connect(tables: &Tables) -> Result<Session, Failure> {
    let mut builder =
        SessionBuilder::new().known_node(&tables.node).pool_size(PoolSize::PerHost(CONNECTIONS));
    if let (Ok(name), Ok(password)) =
        (std::env::var("CASSANDRA_USERNAME"), std::env::var("CASSANDRA_PASSWORD"))
    {
        builder = builder.user(name, password);
    }
    Ok(builder.build().await?)
}

/// A row of a number. Ids are as far apart as random ones.
fn row_of(number: u64) -> (Id, String, String) {
    let mixed = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let (directory, name) = (number / FOLDER, number % FOLDER);
    (Id(mixed.to_be_bytes()), format!("{directory:04}"), format!("{name:04}"))
}

pub(super) async fn fill(tables: &Tables, rows: u64, inflight: u64) -> Result<(), Failure> {
    let session = Arc::new(connect(tables).await?);
    let keyspace = &tables.keyspace;
    let row = format!(
        "INSERT INTO {keyspace}.metadata (id, directory, name, bytes) VALUES (?, ?, ?, 1) \
         USING TIMESTAMP 1"
    );
    let data = format!("INSERT INTO {keyspace}.data (id, data) VALUES (?, 0x00) USING TIMESTAMP 1");
    let (row, data) = (session.prepare(row).await?, session.prepare(data).await?);
    each(rows, inflight, |number| {
        let (session, row, data) = (Arc::clone(&session), row.clone(), data.clone());
        let cells = row_of(number);
        async move {
            session.execute_unpaged(&data, (cells.0,)).await?;
            session.execute_unpaged(&row, cells).await?;
            Ok(())
        }
    })
    .await
}

pub(super) async fn list(tables: &Tables) -> Result<Vec<Row>, Failure> {
    let session = Arc::new(connect(tables).await?);
    let text = format!(
        "SELECT id, directory, name, bytes, WRITETIME(bytes) FROM {}.metadata \
         WHERE token(id) > ? AND token(id) <= ?",
        tables.keyspace
    );
    let statement = session.prepare(text).await?;
    let listed: Arc<Mutex<Vec<Row>>> = Arc::default();
    each(RANGES, RANGES_AT_ONCE, |nth| {
        let (session, statement) = (Arc::clone(&session), statement.clone());
        let listed = Arc::clone(&listed);
        async move {
            let mut from = PagingState::start();
            loop {
                let asked = session.execute_single_page(&statement, range(nth), from).await;
                let (answer, then) = asked?;
                let answer = answer.into_rows_result()?;
                let rows = answer.rows::<Row>()?.collect::<Result<Vec<_>, _>>()?;
                listed.lock().extend(rows);
                match then.into_paging_control_flow() {
                    ControlFlow::Continue(state) => from = state,
                    ControlFlow::Break(()) => return Ok(()),
                }
            }
        }
    })
    .await?;
    Ok(std::mem::take(&mut listed.lock()))
}

/// A range of tokens: those after the first one, up to the second one.
fn range(nth: u64) -> (i64, i64) {
    let begin = |nth: u64| i64::MIN.wrapping_add((nth * (u64::MAX / RANGES + 1)) as i64);
    (begin(nth), if nth + 1 < RANGES { begin(nth + 1) } else { i64::MAX })
}

/// The source, and how many rows it has.
pub(super) fn list_as_belady(tables: &Tables) -> Result<(Arc<dyn Source>, u64), Failure> {
    let settings = SourceConfig {
        rows: "metadata".to_owned(),
        path: "{directory}/{name}".to_owned(),
        data: "data.data".to_owned(),
        size: "bytes".to_owned(),
        ..SourceConfig::default()
    };
    let url = format!("cassandra://{}/{}", tables.node, tables.keyspace);
    let seen = AtomicU64::new(0);
    let location = Location::parse(Path::new(&url), &settings)?;
    let source = Opening::for_names(View::Directory, &seen).open(&location)?;
    Ok((source, seen.load(Ordering::Relaxed)))
}

/// Reads the data of rows that were listed, in that order.
pub(super) async fn read(
    tables: &Tables,
    listed: Vec<Row>,
    inflight: u64,
) -> Result<Value, Failure> {
    let session = Arc::new(connect(tables).await?);
    let text = format!("SELECT data, WRITETIME(data) FROM {}.data WHERE id = ?", tables.keyspace);
    let statement = session.prepare(text).await?;
    time_reads(listed.len() as u64, inflight, |nth| {
        let (session, statement) = (Arc::clone(&session), statement.clone());
        let id = listed[nth as usize].0;
        async move {
            let answer = session.execute_unpaged(&statement, (id,)).await?.into_rows_result()?;
            let (data, _): (&[u8], i64) = answer.single_row()?;
            Ok(data.len())
        }
    })
    .await
}
