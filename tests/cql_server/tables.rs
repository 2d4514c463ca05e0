//! Tables in memory, and those in which a driver looks for what there is.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::frames::{Fields, collection};
use super::select::{Condition, Select};

/// What a column is in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    PartitionKey,
    Clustering,
    Regular,
}

/// Cells by column. A cell has bytes, and a write time in microseconds since 1970.
pub(super) type Cells = BTreeMap<String, (Arc<[u8]>, i64)>;

/// Where a row is: its token, and its key.
pub(super) type Key = (i64, Vec<u8>);

#[derive(Clone)]
pub(super) struct Column {
    pub(super) name: String,
    /// Its type, as CQL has it.
    pub(super) kind: String,
    pub(super) part: Part,
}

/// Which rows of a table a request sees.
pub(super) const OF_ONE: usize = 0;
pub(super) const OF_MOST: usize = 1;

/// A table whose rows have a key of one column.
#[derive(Clone)]
pub(super) struct Table {
    pub(super) columns: Vec<Column>,
    /// The rows as one replica has them, and as most replicas have them.
    copies: [BTreeMap<Key, Cells>; 2],
}

impl Table {
    pub(super) fn new(columns: Vec<Column>) -> Self {
        Table { columns, copies: Default::default() }
    }

    fn of_rows(columns: &[(&str, &str)], rows: Vec<Vec<Vec<u8>>>) -> Self {
        let column = |(nth, (name, kind)): (usize, &(&str, &str))| {
            let part = if nth == 0 { Part::PartitionKey } else { Part::Regular };
            Column { name: (*name).to_owned(), kind: (*kind).to_owned(), part }
        };
        let mut table = Table::new(columns.iter().enumerate().map(column).collect());
        for (nth, cells) in rows.into_iter().enumerate() {
            // Some rows of such a table have one key.
            let place = [&cells[0][..], &nth.to_be_bytes()].concat();
            let names = table.columns.iter().map(|column| column.name.clone());
            let cells_of_row = cells.iter().map(|cell| (Arc::from(&cell[..]), 0_i64));
            let row: Cells = names.zip(cells_of_row).collect();
            for copy in &mut table.copies {
                copy.insert((token(&cells[0]), place.clone()), row.clone());
            }
        }
        table
    }

    fn is_key(&self, name: &str) -> bool {
        self.columns.iter().any(|column| column.name == name && column.part == Part::PartitionKey)
    }

    /// Writes cells, where there are none that were written later.
    pub(super) fn put(&mut self, key: &[u8], cells: &[(&str, &[u8], i64)]) {
        self.put_into(OF_ONE, key, cells);
        self.put_into(OF_MOST, key, cells);
    }

    fn put_into(&mut self, copy: usize, key: &[u8], cells: &[(&str, &[u8], i64)]) {
        let names = self.columns.iter().filter(|column| column.part == Part::PartitionKey);
        let of_key = names.map(|column| (column.name.clone(), (Arc::<[u8]>::from(key), 0_i64)));
        let row = self.copies[copy].entry((token(key), key.to_vec())).or_default();
        row.extend(of_key);
        for (name, bytes, written) in cells {
            assert!(self.columns.iter().any(|column| column.name == *name), "no column {name}");
            let is_later = row.get(*name).is_none_or(|(_, before)| before <= written);
            if is_later {
                row.insert((*name).to_owned(), (Arc::from(*bytes), *written));
            }
        }
    }

    pub(super) fn delete(&mut self, key: &[u8]) {
        for copy in &mut self.copies {
            copy.remove(&(token(key), key.to_vec()));
        }
    }

    /// Makes a cell null.
    pub(super) fn delete_cell(&mut self, key: &[u8], name: &str) {
        for copy in &mut self.copies {
            if let Some(row) = copy.get_mut(&(token(key), key.to_vec())) {
                row.remove(name);
            }
        }
    }

    /// Has one replica keep another row than most do, or none.
    pub(super) fn put_stale(&mut self, key: &[u8], cells: Option<&[(&str, &[u8], i64)]>) {
        self.copies[OF_ONE].remove(&(token(key), key.to_vec()));
        if let Some(cells) = cells {
            self.put_into(OF_ONE, key, cells);
        }
    }

    /// Has one replica keep what most keep.
    pub(super) fn repair(&mut self) {
        self.copies[OF_ONE] = self.copies[OF_MOST].clone();
    }

    fn column(&self, select: &Select, name: &str) -> Result<&Column, String> {
        let found = self.columns.iter().find(|column| column.name == name);
        found.ok_or_else(|| {
            let [name, keyspace, table] = [name, &select.keyspace, &select.table].map(quoted);
            format!("Undefined column name {name} in table {keyspace}.{table}")
        })
    }

    /// Name and type of each column of an answer.
    pub(super) fn selected(&self, select: &Select) -> Result<Vec<(String, String)>, String> {
        let mut selected = Vec::new();
        for (name, is_write_time) in &select.columns {
            let column = self.column(select, name)?;
            selected.push(match is_write_time {
                false => (name.clone(), column.kind.clone()),
                true if column.part == Part::Regular => {
                    (format!("writetime({name})"), "bigint".to_owned())
                }
                true => {
                    let name = quoted(name);
                    let what = "Cannot use selection function writetime on PRIMARY KEY part";
                    return Err(format!("{what} {name}"));
                }
            });
        }
        Ok(selected)
    }

    /// Name and type of each value that comes with a request.
    pub(super) fn bound(&self, select: &Select) -> Result<Vec<(String, String)>, String> {
        let mut bound = Vec::new();
        for condition in &select.conditions {
            let Column { name, kind, .. } = self.column(select, &condition.column)?;
            if condition.value.is_none() {
                bound.push(match &*condition.operator {
                    "in" => (format!("in({name})"), format!("list<{kind}>")),
                    "=" => (name.clone(), kind.clone()),
                    _ => ("partition key token".to_owned(), "bigint".to_owned()),
                });
            }
        }
        Ok(bound)
    }

    /// Which of these values is the key.
    pub(super) fn key_place(&self, select: &Select) -> Option<u16> {
        let mut bound = select.conditions.iter().filter(|condition| condition.value.is_none());
        let place = bound.position(|bound| bound.operator == "=" && self.is_key(&bound.column));
        place.map(|place| place as u16)
    }

    /// The rows for which all conditions hold, after a key, in the order of tokens.
    pub(super) fn rows<'a>(
        &'a self,
        copy: usize,
        wanted: &'a [(&'a Condition, &'a [u8])],
        after: Option<&'a Key>,
    ) -> impl Iterator<Item = (&'a Key, &'a Cells)> {
        let (mut first, mut last) = ((i64::MIN, Vec::new()), i64::MAX);
        for (condition, value) in wanted {
            match &*condition.operator {
                "=" if self.is_key(&condition.column) => {
                    first = (token(value), value.to_vec());
                    last = first.0;
                }
                ">" => first.0 = number(value),
                "<=" => last = number(value),
                _ => {}
            }
        }
        if let Some(after) = after {
            first = first.max(after.clone());
        }
        let rows = self.copies[copy].range(first..).take_while(move |(key, _)| key.0 <= last);
        rows.filter(move |(key, cells)| {
            let is_so = |(condition, value): &(&Condition, &[u8])| {
                holds(condition, value, key.0, cells.get(&condition.column))
            };
            after.is_none_or(|after| *key > after) && wanted.iter().all(is_so)
        })
    }
}

/// Whether a condition holds for the token and the cell of a row.
fn holds(condition: &Condition, value: &[u8], at: i64, cell: Option<&(Arc<[u8]>, i64)>) -> bool {
    let cell = cell.map(|(bytes, _)| &**bytes);
    match &*condition.operator {
        ">" => at > number(value),
        "<=" => at <= number(value),
        "=" => cell == Some(value),
        _ => {
            let mut items = Fields(value);
            let count = items.int().unwrap_or(0);
            (0..count).map_while(|_| items.bytes()).any(|item| cell == Some(item))
        }
    }
}

fn number(value: &[u8]) -> i64 {
    value.try_into().map_or(i64::MAX, i64::from_be_bytes)
}

/// A name as a server writes it in messages.
fn quoted(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    match name.starts_with(|first: char| first.is_ascii_lowercase()) && name.bytes().all(is_plain) {
        true => name.to_owned(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

/// The token that Murmur3Partitioner gives a key: the first half of MurmurHash3. The last bytes have signs, as those
/// of Java do.
pub fn token(key: &[u8]) -> i64 {
    const C1: u64 = 0x87c3_7b91_1142_53d5;
    const C2: u64 = 0x4cf5_ad43_2745_937f;
    let mixed_1 = |k: u64| k.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2);
    let mixed_2 = |k: u64| k.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1);
    let place = |bytes: &[u8], value: fn(u8) -> u64| {
        bytes.iter().enumerate().fold(0_u64, |k, (nth, byte)| k ^ (value(*byte) << (8 * nth)))
    };
    let (mut h1, mut h2) = (0_u64, 0_u64);
    let blocks = key.chunks_exact(16);
    let (tail_1, tail_2) = blocks.remainder().split_at(blocks.remainder().len().min(8));
    for block in blocks {
        let [k1, k2] = [&block[..8], &block[8..]].map(|half| place(half, u64::from));
        h1 = (h1 ^ mixed_1(k1)).rotate_left(27).wrapping_add(h2);
        h1 = h1.wrapping_mul(5).wrapping_add(0x52dc_e729);
        h2 = (h2 ^ mixed_2(k2)).rotate_left(31).wrapping_add(h1);
        h2 = h2.wrapping_mul(5).wrapping_add(0x3849_5ab5);
    }
    let [k1, k2] =
        [tail_1, tail_2].map(|tail| place(tail, |byte: u8| i64::from(byte as i8) as u64));
    h1 ^= mixed_1(k1) ^ key.len() as u64;
    h2 ^= mixed_2(k2) ^ key.len() as u64;
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    match finished(h1).wrapping_add(finished(h2)) as i64 {
        // It is no token, but the place before all.
        i64::MIN => i64::MAX,
        token => token,
    }
}

fn finished(mut k: u64) -> u64 {
    k = (k ^ (k >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    k = (k ^ (k >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    k ^ (k >> 33)
}

/// What the tables of the server itself say of it.
#[derive(Default)]
pub(super) struct About {
    /// The one that it does not have itself.
    pub(super) keyspace: Option<String>,
    pub(super) tables: BTreeMap<String, Table>,
    /// `None`: the one that it has.
    pub(super) partitioner: Option<String>,
}

const PARTITIONER: &str = "org.apache.cassandra.dht.Murmur3Partitioner";

impl About {
    /// A table of the server itself.
    pub(super) fn of_system(&self, keyspace: &str, name: &str) -> Option<Table> {
        let no_rows = Vec::new();
        Some(match (keyspace, name) {
            ("system", "local") => Table::of_rows(
                &[
                    ("key", "text"),
                    ("host_id", "uuid"),
                    ("schema_version", "uuid"),
                    ("rpc_address", "inet"),
                    ("data_center", "text"),
                    ("rack", "text"),
                    ("tokens", "set<text>"),
                    ("cluster_name", "text"),
                    ("partitioner", "text"),
                ],
                vec![self.local()],
            ),
            ("system", "peers") => Table::of_rows(
                &[
                    ("peer", "inet"),
                    ("host_id", "uuid"),
                    ("rpc_address", "inet"),
                    ("data_center", "text"),
                    ("rack", "text"),
                    ("tokens", "set<text>"),
                ],
                no_rows,
            ),
            ("system_schema", "keyspaces") => Table::of_rows(
                &[
                    ("keyspace_name", "text"),
                    ("durable_writes", "boolean"),
                    ("replication", "map<text, text>"),
                ],
                self.keyspaces(),
            ),
            ("system_schema", "tables") => Table::of_rows(
                &[("keyspace_name", "text"), ("table_name", "text")],
                self.tables.keys().map(|name| self.of_keyspace(&[name])).collect(),
            ),
            ("system_schema", "columns") => Table::of_rows(
                &[
                    ("keyspace_name", "text"),
                    ("table_name", "text"),
                    ("column_name", "text"),
                    ("kind", "text"),
                    ("type", "text"),
                    ("position", "int"),
                ],
                self.columns(),
            ),
            ("system_schema", "types") => Table::of_rows(
                &[
                    ("keyspace_name", "text"),
                    ("type_name", "text"),
                    ("field_names", "list<text>"),
                    ("field_types", "list<text>"),
                ],
                no_rows,
            ),
            ("system_schema", "views") => Table::of_rows(
                &[("keyspace_name", "text"), ("view_name", "text"), ("base_table_name", "text")],
                no_rows,
            ),
            _ => return None,
        })
    }

    /// The only node. It has the whole ring, whatever its token is.
    fn local(&self) -> Vec<Vec<u8>> {
        let partitioner = self.partitioner.as_deref().unwrap_or(PARTITIONER);
        vec![
            b"local".to_vec(),
            vec![7; 16],
            vec![8; 16],
            vec![127, 0, 0, 1],
            b"datacenter1".to_vec(),
            b"rack1".to_vec(),
            collection(1, &["0"]),
            b"Test Cluster".to_vec(),
            partitioner.as_bytes().to_vec(),
        ]
    }

    /// A row that begins with the name of the keyspace.
    fn of_keyspace(&self, texts: &[&str]) -> Vec<Vec<u8>> {
        let keyspace = self.keyspace.as_deref().unwrap_or_default();
        let texts = [&[keyspace][..], texts].concat();
        texts.iter().map(|text| text.as_bytes().to_vec()).collect()
    }

    fn keyspaces(&self) -> Vec<Vec<Vec<u8>>> {
        let class = "org.apache.cassandra.locator.SimpleStrategy";
        let replication = collection(2, &["class", class, "replication_factor", "1"]);
        let row = |name: &String| vec![name.as_bytes().to_vec(), vec![1], replication.clone()];
        self.keyspace.iter().map(row).collect()
    }

    fn columns(&self) -> Vec<Vec<Vec<u8>>> {
        let mut rows = Vec::new();
        for (table, Table { columns, .. }) in &self.tables {
            for (nth, Column { name, kind, part }) in columns.iter().enumerate() {
                let before = columns[..nth].iter().filter(|before| before.part == *part).count();
                let (what, position) = match part {
                    Part::PartitionKey => ("partition_key", before as i32),
                    Part::Clustering => ("clustering", before as i32),
                    Part::Regular => ("regular", -1),
                };
                let mut row = self.of_keyspace(&[table, name, what, kind]);
                row.push(position.to_be_bytes().to_vec());
                rows.push(row);
            }
        }
        rows
    }
}
