//! The audit of the schema: no path, inode or mount is stored anywhere (specification, portability), and
//! what a record's JSON calls its fields is what the specification calls them.

use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

use super::{Fixture, code, meta, root, seal};
use crate::Graph;

fn columns(db: &Connection) -> Vec<(String, String)> {
    let sql =
        "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'";
    let mut statement = db.prepare(sql).expect("columns");
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("columns");
    rows.collect::<Result<_, _>>().expect("columns")
}

fn reading(path: &Path) -> Connection {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).expect("open")
}

#[test]
fn nothing_worker_local_is_in_the_schema_or_in_a_row() {
    let fixture = Fixture::new();
    let created = fixture.group("project");
    let attempt = fixture.quiescing(created.node.node_id);
    fixture.graph.commit_seal_pin(&meta(), seal(&attempt), root("sealed")).expect("seal");
    let db = reading(&fixture.path);
    let columns = columns(&db);
    assert!(columns.len() > 100, "the audit looks at {} columns", columns.len());
    let words = [
        "path",
        "inode",
        "ino",
        "mount",
        "carrier",
        "fd",
        "dir",
        "directory",
        "upper",
        "lower",
        "device",
        "pid",
    ];
    for (table, column) in &columns {
        let bad = column.split('_').find(|word| words.contains(word) && column != "work_dir");
        assert_eq!(bad, None, "{table}.{column}");
    }
    let place = fixture.path.parent().and_then(Path::to_str).expect("utf-8").to_owned();
    for (table, column) in &columns {
        let mut statement = db.prepare(&format!("SELECT {column} FROM {table}")).expect("values");
        let mut rows = statement.query([]).expect("values");
        while let Some(row) = rows.next().expect("row") {
            if let ValueRef::Text(text) = row.get_ref(0).expect("value") {
                assert!(!String::from_utf8_lossy(text).contains(&place), "{table}.{column}");
            }
        }
    }
}

#[test]
fn every_table_and_column_is_documented() {
    let fixture = Fixture::new();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema.md");
    let page = std::fs::read_to_string(path).expect("docs/schema.md");
    let words: std::collections::HashSet<&str> =
        page.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
    for (table, column) in columns(&reading(&fixture.path)) {
        assert!(words.contains(table.as_str()) && words.contains(column.as_str()), "{table}.{column}");
    }
    for kind in esf_core::record::EventKind::ALL {
        assert!(words.contains(kind.as_str()), "event {}", kind.as_str());
    }
}

#[test]
fn columns_for_later_are_there_from_the_first_day() {
    let fixture = Fixture::new();
    let columns = columns(&reading(&fixture.path));
    for (table, column) in [
        ("nodes", "trace_id"),
        ("nodes", "statement_digest"),
        ("attempts", "boot_id"),
        ("attempts", "salvaged_from"),
        ("attempts", "trace_id"),
        ("environments", "secrets_policy"),
        ("evaluations", "run_attempt_id"),
        ("evaluations", "statement_digest"),
        ("events", "trace_id"),
        ("leases", "boot_id"),
    ] {
        assert!(columns.contains(&(table.to_owned(), column.to_owned())), "{table}.{column}");
    }
}

#[test]
fn records_have_the_specifications_field_names() {
    let fixture = Fixture::new();
    let created = fixture.group("project");
    let sealed = fixture.sealed(created.node.node_id, "sealed");
    let group = serde_json::to_value(&created.group).expect("json");
    let node = serde_json::to_value(&sealed.node).expect("json");
    let attempt = serde_json::to_value(&sealed.attempt).expect("json");
    for (record, fields) in [
        (&group, &["group_id", "canonical_node_id", "generation", "policy"][..]),
        (&node, &["node_id", "parents", "root_id", "logical_state", "status"]),
        (&attempt, &["attempt_id", "node_id", "executor", "lease_id", "private_delta", "purpose"]),
    ] {
        for field in fields {
            assert!(record.get(field).is_some(), "{field} in {record}");
        }
    }
    assert_eq!(node["status"], "sealed");
    assert_eq!(attempt["executor"], "oci");
}

#[test]
fn a_newer_a_foreign_and_a_missing_file_are_told_apart() {
    let fixture = Fixture::new();
    let other = esf_core::StoreId::from_bytes([8; 16]);
    assert_eq!(code(&Graph::create(&fixture.path, other).expect_err("other store")), "store_damaged");
    assert_eq!(code(&Graph::open(&fixture.path.with_extension("none")).expect_err("missing")), "not_found");
    reading(&fixture.path).execute("INSERT INTO migrations VALUES (99, 'later')", []).expect("insert");
    assert_eq!(code(&Graph::open(&fixture.path).expect_err("newer")), "store_newer");
    let garbage = fixture.path.with_extension("garbage");
    std::fs::write(&garbage, vec![0x5a; 8192]).expect("write");
    assert_eq!(code(&Graph::open(&garbage).expect_err("garbage")), "store_damaged");
}

#[test]
fn check_names_what_is_wrong() {
    let fixture = Fixture::new();
    let created = fixture.group("project");
    let started = fixture.active(created.node.node_id);
    assert_eq!(fixture.graph.check().expect("check"), Vec::<String>::new());
    let db = reading(&fixture.path);
    db.execute_batch(
        "PRAGMA foreign_keys = OFF; DELETE FROM roots; UPDATE leases SET status = 'released';
         DELETE FROM events WHERE seq = 2; UPDATE policies SET toml = 'on_expiry = \"seal\"'",
    )
    .expect("damage");
    let findings = fixture.graph.check().expect("check").join("\n");
    for word in [
        format!("{}: its root is not registered", created.node.node_id),
        format!("{}: it is live without a lease", started.attempt.attempt_id),
        "the event log has".to_owned(),
        "has other content".to_owned(),
    ] {
        assert!(findings.contains(&word), "{word} in:\n{findings}");
    }
}

#[test]
fn a_graph_of_the_first_schema_is_upgraded_with_all_it_has() {
    let fixture = Fixture::new();
    let created = fixture.group("project");
    let sealed = fixture.sealed(created.node.node_id, "sealed");
    let path = fixture.path.with_extension("first");
    let old = Connection::open(&path).expect("open");
    old.execute_batch(include_str!("../sql/migrations/0001_first.sql")).expect("first");
    old.execute_batch(
        "CREATE TABLE migrations (version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL) STRICT;
         INSERT INTO migrations VALUES (1, 'first'); PRAGMA application_id = 1163085383; PRAGMA foreign_keys = OFF",
    )
    .expect("marks");
    old.execute("ATTACH $1 AS new", [fixture.path.to_str().expect("utf-8")]).expect("attach");
    let mut tables = std::collections::BTreeMap::<String, Vec<String>>::new();
    for (table, column) in columns(&old) {
        tables.entry(table).or_default().push(column);
    }
    tables.remove("migrations");
    for (table, columns) in &tables {
        let columns = columns.join(", ");
        let sql = format!("INSERT INTO main.{table} ({columns}) SELECT {columns} FROM new.{table}");
        old.execute_batch(&sql).expect(table);
    }
    old.execute_batch("DETACH new").expect("detach");
    drop(old);
    let graph = Graph::open(&path).expect("upgraded");
    assert_eq!(graph.check().expect("check"), Vec::<String>::new());
    assert_eq!(graph.node(sealed.node.node_id).expect("node"), sealed.node);
    let events = graph.events(1, u64::MAX).expect("events");
    assert_eq!(events, fixture.graph.events(1, u64::MAX).expect("events"));
    let command = esf_core::ops::search::CreateSearch {
        root: sealed.node.node_id,
        config: esf_core::search::Config::default(),
    };
    graph.create_search(&meta(), command).expect("a search");
    assert_eq!(graph.check().expect("check"), Vec::<String>::new());
}
