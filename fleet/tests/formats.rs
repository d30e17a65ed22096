//! The published schema: files in the repository that every version must read, other engines that read the same, and
//! bytes that are no shard.

use std::path::{Path, PathBuf};
use std::process::Command;

use postlink_fleet::engine::Limits;
use postlink_fleet::merge;
use postlink_fleet::progress::Progress;
use postlink_fleet::read::{Input, Reader};
use postlink_fleet::schema::{AddressKind, Kind, Labels, Row, Rows, schema};
use postlink_fleet::shard::{self, Inventory, Writer};

/// One row of each kind, with every column in use.
fn rows() -> (Rows, Labels) {
    let mut rows = Rows::default();
    let file = rows.file("deadbeef01", "app");
    let other = rows.file("", "lib\\x");
    let (map, function) = (rows.name("00000000000000ab"), rows.name("main"));
    let event = rows.name("cycles:u");
    for (at, kind) in Kind::ALL.into_iter().enumerate() {
        let at = at as u64;
        rows.rows.push(Row {
            file: if at % 5 == 4 { other } else { file },
            kind: Some(kind),
            address_kind: (kind != Kind::Statistic).then_some(AddressKind::Linked),
            map: at.is_multiple_of(2).then_some(map),
            from_function: at.is_multiple_of(3).then_some(function),
            from_address: (at % 4 != 1).then_some(0x1000 + at),
            to_function: (at % 3 == 1).then_some(function),
            to_address: (at % 4 != 2).then_some(u64::MAX - at),
            run: (at % 4 == 3).then_some(7 * at),
            event,
            count: if at == 3 { u64::MAX } else { at + 1 },
            mispredictions: at / 2,
        });
    }
    let labels = Labels {
        day: 20_780,
        service: "web".into(),
        host_class: "large".into(),
        source: "fdata".into(),
        weight: 3,
    };
    (rows, labels)
}

fn write(folder: &Path, run: &str) -> PathBuf {
    let (mut rows, labels) = rows();
    let id = rows.finish(&labels, run);
    let mut writer = Writer::new(folder).unwrap();
    let batch = rows.batch(&rows.rows, &labels).unwrap();
    writer.write(&batch).unwrap();
    let days = (labels.day, labels.day);
    writer.finish(&id, std::slice::from_ref(&id), days).unwrap()
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn query(sql: &str, place: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_postlink-fleet"))
        .args(["query", sql, "--format", "csv"])
        .arg(place)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

const ALL: &str = "SELECT * FROM counts ORDER BY build_id, kind, from_address";

/// Files of version 1 are read by every later program. `BLESS=1` writes what is expected anew; the Parquet file is only
/// replaced by hand, since it represents files that exist.
#[test]
fn golden_files_are_read_and_written_as_they_are() {
    let folder = golden();
    let expected = folder.join("version-1.csv");
    let file = folder.join("version-1.parquet");
    let new = tempfile::tempdir().unwrap();
    let written = write(new.path(), "golden");
    if std::env::var_os("BLESS").is_some() {
        if !file.exists() {
            std::fs::copy(&written, &file).unwrap();
        }
        std::fs::write(&expected, query(ALL, &file)).unwrap();
    }
    let found = query(ALL, &file);
    assert_eq!(found, std::fs::read_to_string(&expected).unwrap());
    assert_eq!(query(ALL, &written), found);
    let (old, new) = (shard::open(&file).unwrap(), shard::open(&written).unwrap());
    assert_eq!((old.ids, old.rows, old.days), (new.ids, new.rows, new.days));
}

/// Whatever is in a file, opening it gives what it holds or an error with its name.
#[test]
fn any_bytes_are_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(golden().join("version-1.parquet")).unwrap();
    let path = folder.path().join("damaged.parquet");
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below.max(1) as u64) as usize
    };
    let (mut opened, mut refused, mut read) = (0, 0, 0);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _guard = runtime.enter();
    for _ in 0..4000 {
        let mut bytes = whole.clone();
        // Most of the structure is in the footer, at the end.
        for _ in 0..=random(3) {
            let reach = if random(4) > 0 {
                bytes.len() / 2
            } else {
                bytes.len()
            };
            let at = bytes.len() - 1 - random(reach);
            match random(4) {
                0 => bytes.truncate(at.max(1)),
                1 => bytes[at] ^= 1 << random(8),
                2 => bytes[at] = [0, 0x7f, 0x80, 0xff][random(4)],
                _ => bytes.insert(at, random(256) as u8),
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        match shard::open(&path) {
            Ok(shard) => {
                opened += 1;
                // What has no hash in its name is believed, so its rows may be damaged as well.
                let done =
                    Reader::new(schema()).read(&Input::from(&shard), None, &mut |_| Ok(true));
                match done {
                    Ok(()) => read += 1,
                    Err(error) => {
                        let message = format!("{error:#}");
                        assert!(message.contains("damaged.parquet"), "{message}");
                    }
                }
            }
            Err(error) => {
                refused += 1;
                let message = format!("{error:#}");
                assert!(message.contains("damaged.parquet"), "{message}");
            }
        }
    }
    assert!(opened > 100 && refused > 1000, "{opened} {refused}");
    assert!(read > 10 && opened - read > 10, "{read} of {opened}");
}

/// A file under its own name is refused whichever of its bits is another.
#[test]
fn every_flipped_bit_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "");
    let whole = std::fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(7) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(&path, &bytes).unwrap();
        assert!(shard::open(&path).is_err(), "byte {at}");
    }
}

/// The rows that footers promise are counted once more where they are added up, here as on a cluster.
#[test]
fn a_merge_that_misses_a_row_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (shards, merged) = (folder.path().join("shards"), folder.path().join("merged"));
    for run in ["a", "b"] {
        write(&shards, run);
    }
    let limits = Limits {
        memory: 64 << 20,
        temporary: None,
        threads: Some(1),
        cluster: None,
    };
    let merge = async |missing: u64| {
        let (places, progress) = ([shards.clone().into()], Progress::default());
        let mut inventory = Inventory::read(&places, false, None, &progress).await?;
        inventory.used[0].rows += missing;
        merge::merge(&inventory, &limits, None, &merged, &progress).await
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    let error = runtime.block_on(merge(1)).unwrap_err().to_string();
    let (found, said) = (Kind::ALL.len(), Kind::ALL.len() + 1);
    let expected = format!("{found} rows were read, and its footer says {said}");
    assert!(
        error.contains(".parquet: ") && error.ends_with(&expected),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(&merged).unwrap().count(), 0);
    assert!(runtime.block_on(merge(0)).unwrap().is_some());
}

/// Whatever order the rows of a shard have, and the columns: the sums are sorted.
#[test]
fn a_shard_whose_rows_are_out_of_order_is_added_up_as_one_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let merged = |name: &str, turned: bool| {
        let (mut all, labels) = rows();
        let shards = folder.path().join(name);
        for run in ["a", "b"] {
            let id = all.finish(&labels, run);
            let mut rows = all.rows.clone();
            if turned && run == "b" {
                rows.reverse();
                rows.swap(3, 7);
            }
            let mut writer = Writer::new(&shards).unwrap();
            writer.write(&all.batch(&rows, &labels).unwrap()).unwrap();
            let days = (labels.day, labels.day);
            writer.finish(&id, std::slice::from_ref(&id), days).unwrap();
        }
        let out = folder.path().join(format!("{name}.merged"));
        let output = Command::new(env!("CARGO_BIN_EXE_postlink-fleet"))
            .args([
                "merge".as_ref(),
                shards.as_os_str(),
                "-o".as_ref(),
                out.as_os_str(),
            ])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let only = std::fs::read_dir(&out).unwrap().next().unwrap().unwrap();
        // The name has the ids of the shards and the hash of all bytes.
        only.file_name()
    };
    assert_eq!(merged("in order", false), merged("out of order", true));
}

/// A file of another tool with a part of its rows in a row group of its own, columns in another order, one of its own,
/// and nulls where none may be.
#[test]
fn files_of_other_tools_are_read_by_the_names_of_columns() {
    use datafusion::arrow::array::{Array, ArrayRef, RecordBatch, StringArray};
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use datafusion::parquet::arrow::ArrowWriter;
    use datafusion::parquet::basic::{Compression, ZstdLevel};
    use datafusion::parquet::file::metadata::KeyValue;
    use datafusion::parquet::file::properties::{WriterProperties, WriterVersion};
    use std::sync::Arc;
    let folder = tempfile::tempdir().unwrap();
    let (mut rows, labels) = rows();
    rows.finish(&labels, "");
    let batch = rows.batch(&rows.rows, &labels).unwrap();
    let write = |name: &str, without: Option<&str>, properties: Option<WriterProperties>| {
        let mut fields = vec![Arc::new(Field::new("other", DataType::Utf8, true))];
        let other = StringArray::from(vec!["x"; batch.num_rows()]);
        let mut columns: Vec<ArrayRef> = vec![Arc::new(other)];
        let schema = batch.schema();
        for (field, column) in schema.fields().iter().zip(batch.columns()).rev() {
            let null = without == Some(field.name());
            fields.push(Arc::new(field.as_ref().clone().with_nullable(true)));
            columns.push(match null {
                true => datafusion::arrow::array::new_null_array(field.data_type(), column.len()),
                false => column.clone(),
            });
        }
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
        let path = folder.path().join(name);
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), properties).unwrap();
        writer.write(&batch.slice(0, 5)).unwrap();
        writer.flush().unwrap();
        writer.write(&batch.slice(5, batch.num_rows() - 5)).unwrap();
        let version = KeyValue::new("postlink.fleet.version".into(), "1".to_owned());
        writer.append_key_value_metadata(version);
        writer.close().unwrap();
        path
    };
    let expected = std::fs::read_to_string(golden().join("version-1.csv")).unwrap();
    let compressed = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0].map(|version| {
        let properties = WriterProperties::builder().set_writer_version(version);
        let zstd = Compression::ZSTD(ZstdLevel::default());
        Some(properties.set_compression(zstd).build())
    });
    for properties in [None].into_iter().chain(compressed) {
        let whole = write("whole.parquet", None, properties);
        assert_eq!(query(ALL, &whole), expected);
    }
    let holes = write("holes.parquet", Some("file"), None);
    let output = Command::new(env!("CARGO_BIN_EXE_postlink-fleet"))
        .args(["query", ALL])
        .arg(&holes)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let expected = "holes.parquet: row 0 has no file, which must not be null";
    assert!(
        !output.status.success() && said.contains(expected),
        "{said}"
    );
}

/// DuckDB (from PyPI) merges shards to the same rows as `postlink fleet merge`.
#[test]
fn duckdb_gives_the_same_rows() {
    let python = std::env::var("POSTLINK_PYTHON").unwrap_or_else(|_| "python3".into());
    let there = Command::new(&python).args(["-c", "import duckdb"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        println!(
            "SKIPPED: DuckDB for Python is not installed (pip install duckdb; POSTLINK_PYTHON names the Python)"
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let shards = folder.path().join("shards");
    for run in ["a", "b", "c"] {
        write(&shards, run);
    }
    let merged = folder.path().join("merged");
    let output = Command::new(env!("CARGO_BIN_EXE_postlink-fleet"))
        .arg("merge")
        .arg(&shards)
        .arg("-o")
        .arg(&merged)
        .output()
        .unwrap();
    assert!(output.status.success());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rows = |shards: &Path, name: &str| {
        let out = folder.path().join(name);
        let output = Command::new(&python)
            .arg(root.join("tests/by_duckdb.py"))
            .arg(root.join("../docs/fleet.md"))
            .arg(shards)
            .arg(&out)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        std::fs::read_to_string(out).unwrap()
    };
    let by_duckdb = rows(&shards, "duckdb");
    assert_eq!(by_duckdb.lines().count(), Kind::ALL.len());
    assert!(by_duckdb.contains("18446744073709551615"));
    assert_eq!(by_duckdb, rows(&merged, "ours"));
}
