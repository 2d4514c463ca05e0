//! Rows of the table that is listed, as files.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::cells::{Kind, quoted};
use super::template::Template;

/// A row as it was listed. A row that is equal to it is the same version of the same file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::source) struct Listed {
    /// Its key, as the server writes it.
    pub(super) id: Box<[u8]>,
    /// A number that another key, path, size or write time changes.
    pub(super) digest: u64,
    /// How many bytes the data has; `None` if the row does not tell it.
    pub(super) size: Option<u64>,
    /// When the size was written, in microseconds since 1970. The data of that version was written then, too. 0 if
    /// there is no size.
    pub(super) written: i64,
}

/// A row, and the path of its file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) path: String,
    pub(super) listed: Listed,
}

/// Which columns a request for rows asks for, in which order.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    table: String,
    template: Template,
    /// Name and type of each column. The first one is the key.
    columns: Vec<(String, Kind)>,
    /// Which columns are the values in the path.
    values: Vec<usize>,
    /// Which column is the size, if there is one. The last cell of an answer is its write time then.
    size: Option<usize>,
}

impl Shape {
    pub(super) fn new(
        table: &str,
        template: &Template,
        key: (String, Kind),
        values: Vec<(String, Kind)>,
        size: Option<(String, Kind)>,
    ) -> Self {
        let mut columns = vec![key];
        let mut place = |column: (String, Kind)| {
            let known = columns.iter().position(|known| *known == column);
            known.unwrap_or_else(|| {
                columns.push(column);
                columns.len() - 1
            })
        };
        let values = values.into_iter().map(&mut place).collect();
        let size = size.map(&mut place);
        let (table, template) = (table.to_owned(), template.clone());
        Shape { table, template, columns, values, size }
    }

    /// What is selected, as CQL has it.
    pub(super) fn selected(&self) -> String {
        let names = self.columns.iter().map(|(name, _)| quoted(name));
        let written = |size: usize| format!("WRITETIME({})", quoted(&self.columns[size].0));
        names.chain(self.size.map(written)).collect::<Vec<_>>().join(", ")
    }

    /// Whether there is a column of sizes.
    pub(super) fn tells_sizes(&self) -> bool {
        self.size.is_some()
    }

    /// How people find the row with a key.
    pub(super) fn say(&self, id: &[u8]) -> String {
        let (name, kind) = &self.columns[0];
        format!("the row {name} = {} of {}", kind.literal(id), self.table)
    }

    /// Reads the cells of an answer.
    ///
    /// # Errors
    /// Why the row is no file.
    pub(super) fn row(&self, cells: &[Option<&[u8]>]) -> Result<Row, String> {
        let id = cells.first().copied().flatten().ok_or("a row has no key")?;
        let refuse = |what: String| format!("{}: {what}", self.say(id));
        let cell = |nth: usize| {
            let found = cells.get(nth).copied().flatten();
            found.ok_or_else(|| format!("it has no {}", self.columns[nth].0))
        };
        let add = |value: usize, path: &mut String| {
            let nth = self.values[value];
            let (name, kind) = &self.columns[nth];
            let found = cell(nth)?;
            match kind.write(found, path) {
                true => Ok(()),
                false => Err(format!("its {name} is no value of its type")),
            }
        };
        let path = self.template.fill(add).map_err(refuse)?;
        let sized = |nth: usize| -> Result<(u64, i64), String> {
            let (name, kind) = &self.columns[nth];
            let size = kind.number(cell(nth)?).and_then(|size| u64::try_from(size).ok());
            let size = size.ok_or_else(|| format!("its {name} is no number of bytes"))?;
            let written = cells.get(self.columns.len()).copied().flatten();
            let written = written.and_then(|cell| Kind::BigInt.number(cell));
            let written = written.ok_or_else(|| format!("its {name} has no write time"))?;
            Ok((size, written))
        };
        let sized = self.size.map(sized).transpose().map_err(refuse)?;
        let (size, written) = (sized.map(|(size, _)| size), sized.map_or(0, |(_, at)| at));
        let mut digest = DefaultHasher::new();
        (id, &path, size, written).hash(&mut digest);
        let listed = Listed { id: id.into(), digest: digest.finish(), size, written };
        Ok(Row { path, listed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(template: &str) -> Shape {
        let template = Template::parse(template).unwrap();
        let kind = |name: &str| match name {
            "id" | "bytes" => Kind::Int,
            _ => Kind::Text,
        };
        let column = |name: &str| (name.to_owned(), kind(name));
        let values = template.columns().iter().map(|name| column(name)).collect();
        Shape::new("list", &template, column("id"), values, Some(column("bytes")))
    }

    const ID: Option<&[u8]> = Some(&[0, 0, 0, 7]);
    const SIZE: Option<&[u8]> = Some(&[0, 0, 1, 0]);
    const TIME: Option<&[u8]> = Some(&[0, 0, 0, 0, 0, 0, 0, 9]);

    #[test]
    fn each_column_is_asked_for_once() {
        let selected = |template| shape(template).selected();
        let all = "\"id\", \"label\", \"bytes\", WRITETIME(\"bytes\")";
        assert_eq!(selected("{label}/{id}.JPEG"), all);
        assert_eq!(selected("{id}"), "\"id\", \"bytes\", WRITETIME(\"bytes\")");
        assert_eq!(selected("{bytes}"), "\"id\", \"bytes\", WRITETIME(\"bytes\")");
    }

    #[test]
    fn rows_are_files() {
        let shape = shape("{label}/{id}.JPEG");
        let row = shape.row(&[ID, Some(b"n01"), SIZE, TIME]).unwrap();
        assert_eq!(row.path, "n01/7.JPEG");
        assert_eq!((row.listed.size, row.listed.written), (Some(256), 9));
        let other = shape.row(&[ID, Some(b"n02"), SIZE, TIME]).unwrap();
        assert_ne!(row.listed, other.listed, "it has another path");
        assert_eq!(row, shape.row(&[ID, Some(b"n01"), SIZE, TIME]).unwrap());
    }

    #[test]
    fn rows_that_are_no_files_are_named() {
        let shape = shape("{label}/{id}.JPEG");
        let minus: Option<&[u8]> = Some(&[0xff, 0xff, 0xff, 0xff]);
        for (cells, why) in [
            ([ID, None, SIZE, TIME], "it has no label"),
            ([ID, Some(b"n01"), None, TIME], "it has no bytes"),
            ([ID, Some(b"n01"), minus, TIME], "its bytes is no number of bytes"),
            ([ID, Some(b"n01"), SIZE, None], "its bytes has no write time"),
            ([ID, Some(&[0xff]), SIZE, TIME], "its label is no value of its type"),
            ([ID, Some(b".."), SIZE, TIME], "the path \"../7.JPEG\" leads out of the tree"),
        ] {
            let error = shape.row(&cells).unwrap_err();
            assert_eq!(error, format!("the row id = 7 of list: {why}"));
        }
        assert_eq!(shape.row(&[None; 4]).unwrap_err(), "a row has no key");
    }
}
