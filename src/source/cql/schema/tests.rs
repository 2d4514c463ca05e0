use super::*;
use crate::source::cql::template::Template;

fn column(name: &str, written: &str, is_regular: bool) -> (String, Column) {
    let kind = match written {
        "text" => Some(Kind::Text),
        "int" => Some(Kind::Int),
        "uuid" | "timeuuid" => Some(Kind::Uuid),
        "blob" => Some(Kind::Blob),
        "smallint" => Some(Kind::SmallInt),
        _ => None,
    };
    (name.to_owned(), Column { kind, written: written.to_owned(), is_regular })
}

fn table(name: &str, key: &[(&str, &str)], others: &[(&str, &str)]) -> Table {
    let of_key = key.iter().map(|(name, written)| column(name, written, false));
    let of_others = others.iter().map(|(name, written)| column(name, written, true));
    Table {
        name: name.to_owned(),
        key: key.iter().map(|(name, _)| (*name).to_owned()).collect(),
        columns: of_key.chain(of_others).collect(),
    }
}

const ID: [(&str, &str); 1] = [("id", "uuid")];
const OTHERS: [(&str, &str); 5] = [
    ("or_label", "text"),
    ("or_split", "text"),
    ("label", "int"),
    ("bytes", "int"),
    ("score", "double"),
];

fn shown(path: &str, size: &str) -> Shown {
    Shown {
        rows: "metadata_train".to_owned(),
        path: Template::parse(path).unwrap(),
        data: ("data_train".to_owned(), "data".to_owned()),
        size: size.to_owned(),
    }
}

fn plan(shown: &Shown, key: &[(&str, &str)], data_key: &[(&str, &str)]) -> Result<Plan> {
    let rows = table("metadata_train", key, &OTHERS);
    let data = table("data_train", data_key, &[("label", "int"), ("data", "blob")]);
    Plan::new(shown, false, "imagenet", &rows, &data)
}

#[test]
fn the_tables_of_cassandra_dali_are_asked_so() {
    let shown = shown("{or_split}/{or_label}/{id}.JPEG", "bytes");
    let plan = plan(&shown, &ID, &[("uid", "uuid")]).unwrap();
    let from = "SELECT \"id\", \"or_split\", \"or_label\", \"bytes\", WRITETIME(\"bytes\") \
                FROM \"imagenet\".\"metadata_train\" WHERE";
    assert_eq!(plan.list, format!("{from} token(\"id\") > ? AND token(\"id\") <= ?"));
    assert_eq!(plan.find, format!("{from} \"id\" = ?"));
    let read = "SELECT \"data\", WRITETIME(\"data\") FROM \"imagenet\".\"data_train\" \
                WHERE \"uid\" = ?";
    assert_eq!((&*plan.read, plan.page), (read, PAGE));
}

#[test]
fn one_table_may_have_all() {
    let all = table("all", &ID, &[("bytes", "int"), ("data", "blob")]);
    let data = ("all".to_owned(), "data".to_owned());
    let shown = Shown { rows: "all".to_owned(), data, ..shown("{id}", "bytes") };
    assert_eq!(Plan::new(&shown, false, "k", &all, &all).unwrap().page, PAGE_WITH_DATA);
}

#[test]
fn rows_that_never_change_need_no_sizes() {
    let rows = table("metadata_train", &ID, &OTHERS);
    let data = table("data_train", &[("uid", "uuid")], &[("data", "blob")]);
    let plan = |is_immutable, size| {
        Plan::new(&shown("{label}/{id}", size), is_immutable, "imagenet", &rows, &data)
    };
    let found = plan(true, "").unwrap();
    let list = "SELECT \"id\", \"label\" FROM \"imagenet\".\"metadata_train\" WHERE token";
    assert!(found.list.starts_with(list), "{}", found.list);
    let advice = found.advice.unwrap();
    assert!(advice.contains("ALTER TABLE imagenet.metadata_train ADD bytes int"), "{advice}");
    assert!(plan(true, "bytes").unwrap().advice.is_none());
    let refused = plan(false, "").unwrap_err().to_string();
    assert!(refused.contains("set source.consistency=immutable"), "{refused}");
}

#[test]
fn tables_that_do_not_fit_are_refused() {
    let refused = |path, size, key: &[_], data_key: &[_], why: &str| {
        let error = plan(&shown(path, size), key, data_key).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    let two = [("id", "uuid"), ("part", "int")];
    refused("{id}", "bytes", &two, &ID, "the key of metadata_train is (id, part), not one column");
    refused("{id}", "bytes", &ID, &two, "the key of data_train is (id, part), not one column");
    let time = [("id", "timeuuid")];
    refused("{id}", "bytes", &ID, &time, "is of the type uuid, that of data_train of timeuuid");
    let small = [("id", "smallint")];
    refused(
        "{id}",
        "bytes",
        &small,
        &small,
        "the key id of metadata_train is of the type smallint",
    );
    refused(
        "{id}",
        "or_label",
        &ID,
        &ID,
        "or_label of metadata_train is of the type text, not int",
    );
    refused("{id}", "id", &ID, &ID, "id of metadata_train is a part of the key");
    refused("{id}", "size", &ID, &ID, "the table metadata_train has no column size");
    refused("{x}/{id}", "bytes", &ID, &ID, "the table metadata_train has no column x");
    refused("{score}/{id}", "bytes", &ID, &ID, "score of metadata_train is of the type double");
    refused("{id}", "", &ID, &ID, "ALTER TABLE imagenet.metadata_train ADD bytes int");
}

#[test]
fn data_has_to_be_a_blob() {
    let shown = Shown { data: ("data_train".into(), "label".into()), ..shown("{id}", "bytes") };
    let error = plan(&shown, &ID, &ID).unwrap_err().to_string();
    assert!(error.contains("label of data_train is of the type int, not blob"), "{error}");
}
