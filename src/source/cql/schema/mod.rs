//! The tables of a keyspace, and the requests for the rows that are shown.

use std::collections::HashMap;

use scylla::cluster::metadata::{ColumnKind, Table as Described};

use super::cells::{Kind, quoted, type_name};
use super::cluster::Shown;
use super::rows::Shape;
use crate::error::{Error, ErrorKind, Result};

/// Rows in a page of a listing. Of a table that has the bytes, too, the server reads them for each row.
const PAGE: i32 = 5000;
const PAGE_WITH_DATA: i32 = 100;

/// A column as the server describes it.
#[derive(Clone, Debug)]
struct Column {
    /// `None`: its values are no part of a path.
    kind: Option<Kind>,
    written: String,
    /// Whether it is no part of the key, so that its cells have write times.
    is_regular: bool,
}

/// A table as the server describes it.
#[derive(Clone, Debug)]
pub(super) struct Table {
    name: String,
    /// The columns of the primary key.
    key: Vec<String>,
    columns: HashMap<String, Column>,
}

impl Table {
    pub(super) fn of(name: &str, found: &Described) -> Self {
        let columns = found.columns.iter().map(|(name, column)| {
            let column = Column {
                kind: Kind::of(&column.typ),
                written: type_name(&column.typ),
                is_regular: column.kind == ColumnKind::Regular,
            };
            (name.clone(), column)
        });
        Table {
            name: name.to_owned(),
            key: [&found.partition_key[..], &found.clustering_key[..]].concat(),
            columns: columns.collect(),
        }
    }

    fn column(&self, name: &str) -> Result<&Column> {
        let missing = || refuse(format!("the table {} has no column {name}", self.name));
        self.columns.get(name).ok_or_else(missing)
    }

    /// Its only key.
    fn only_key(&self) -> Result<(&str, &Column, Kind)> {
        let [name] = &self.key[..] else {
            let key = self.key.join(", ");
            return Err(refuse(format!("the key of {} is ({key}), not one column", self.name)));
        };
        let column = self.column(name)?;
        let kind = column.kind.filter(|kind| kind.is_key()).ok_or_else(|| {
            let (table, written) = (&self.name, &column.written);
            let message = format!("the key {name} of {table} is of the type {written}");
            Error::new(ErrorKind::Source, message)
                .hint("keys are uuid, timeuuid, text, int, bigint or blob")
        })?;
        Ok((name, column, kind))
    }

    /// The type of a column whose cells have write times.
    fn regular(&self, name: &str, allowed: &[Kind], wanted: &str) -> Result<Kind> {
        let column = self.column(name)?;
        let (table, written) = (&self.name, &column.written);
        if !column.is_regular {
            return Err(refuse(format!("{name} of {table} is a part of the key")));
        }
        let kind = column.kind.filter(|kind| allowed.contains(kind));
        kind.ok_or_else(|| refuse(format!("{name} of {table} is of the type {written}, {wanted}")))
    }
}

fn refuse(message: String) -> Error {
    Error::new(ErrorKind::Source, message)
        .hint("are source.rows, source.path, source.data and source.size right?")
}

/// The requests for the rows that are shown, as CQL has them.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Rows of a range of tokens.
    pub(super) list: String,
    pub(super) page: i32,
    /// One row.
    pub(super) find: String,
    /// The data of one row, and when it was written.
    pub(super) read: String,
    pub(super) shape: Shape,
    /// If no column tells sizes: how to make one.
    pub(super) advice: Option<String>,
}

impl Plan {
    /// # Errors
    /// Why these tables cannot be shown so.
    pub(super) fn new(
        shown: &Shown,
        is_immutable: bool,
        keyspace: &str,
        rows: &Table,
        data: &Table,
    ) -> Result<Self> {
        let (key, key_column, kind) = rows.only_key()?;
        let (data_key, data_key_column, _) = data.only_key()?;
        if key_column.written != data_key_column.written {
            let (here, there) = (&key_column.written, &data_key_column.written);
            let (rows, data) = (&rows.name, &data.name);
            return Err(refuse(format!(
                "the key {key} of {rows} is of the type {here}, that of {data} of {there}"
            )));
        }
        let (_, bytes) = &shown.data;
        data.regular(bytes, &[Kind::Blob], "not blob")?;
        let size = match &*shown.size {
            "" if is_immutable => None,
            "" => return Err(no_sizes(shown, keyspace, key, data_key)),
            size => {
                let kind = rows.regular(size, &[Kind::Int, Kind::BigInt], "not int or bigint")?;
                Some((size.to_owned(), kind))
            }
        };
        let value = |name: &String| -> Result<(String, Kind)> {
            let column = rows.column(name)?;
            let (table, written) = (&rows.name, &column.written);
            let none = || refuse(format!("{name} of {table} is of the type {written}, no text"));
            Ok((name.clone(), column.kind.ok_or_else(none)?))
        };
        let values = shown.path.columns().iter().map(value).collect::<Result<Vec<_>>>()?;
        let advice = size.is_none().then(|| make_sizes(shown, keyspace, key, data_key));
        let key_of_rows = (key.to_owned(), kind);
        let shape = Shape::new(&rows.name, &shown.path, key_of_rows, values, size);
        let from = format!("SELECT {} FROM {}", shape.selected(), place(keyspace, &rows.name));
        let (key, data_key, bytes) = (quoted(key), quoted(data_key), quoted(bytes));
        let data_table = place(keyspace, &data.name);
        Ok(Plan {
            list: format!("{from} WHERE token({key}) > ? AND token({key}) <= ?"),
            page: if rows.name == data.name { PAGE_WITH_DATA } else { PAGE },
            find: format!("{from} WHERE {key} = ?"),
            read: format!(
                "SELECT {bytes}, WRITETIME({bytes}) FROM {data_table} WHERE {data_key} = ?"
            ),
            shape,
            advice,
        })
    }
}

fn place(keyspace: &str, table: &str) -> String {
    format!("{}.{}", quoted(keyspace), quoted(table))
}

/// The error for a table that does not tell how many bytes the data has. The server cannot tell it: it has no
/// function for the length of a blob.
fn no_sizes(shown: &Shown, keyspace: &str, key: &str, data_key: &str) -> Error {
    let (table, bytes) = &shown.data;
    let message = format!("source.size is not set, and {table} does not tell how long {bytes} is");
    let made = make_sizes(shown, keyspace, key, data_key);
    Error::new(ErrorKind::Source, message).hint(format!(
        "if rows never change, set source.consistency=immutable: then a row is read when its file \
         is looked up. Or {made}"
    ))
}

/// How a column with sizes is made.
fn make_sizes(shown: &Shown, keyspace: &str, key: &str, data_key: &str) -> String {
    let (rows, (table, bytes)) = (&shown.rows, &shown.data);
    format!(
        "make a column with sizes: ALTER TABLE {keyspace}.{rows} ADD bytes int; then, for each \
         row of SELECT {data_key}, {bytes}, WRITETIME({bytes}) FROM {keyspace}.{table} \
         WHERE {data_key} = KEY: UPDATE {keyspace}.{rows} USING TIMESTAMP <that write time> \
         SET bytes = <that length> WHERE {key} = KEY; and set source.size to bytes"
    )
}

#[cfg(test)]
mod tests;
