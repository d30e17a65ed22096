//! Shards in a store that speaks S3: moto's server (from PyPI), on this machine.
#![cfg(feature = "s3")]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Folder, ID, fleet, four, text};
use postlink_fleet::schema::{AddressKind, Kind, Labels, Row, Rows};
use postlink_fleet::shard::Writer;

const PROGRAM: &str = env!("CARGO_BIN_EXE_postlink-fleet");
const PATIENCE: Duration = Duration::from_secs(60);

/// A server with one empty bucket, `fleet`.
struct Store {
    child: Child,
    port: u16,
}

impl Drop for Store {
    fn drop(&mut self) {
        // One that has ended already is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Store {
    /// `None` where the server is not installed.
    fn new() -> Option<Store> {
        let python = std::env::var("POSTLINK_PYTHON").unwrap_or_else(|_| "python3".into());
        let there = Command::new(&python)
            .args(["-c", "import moto.server"])
            .output();
        if !there.is_ok_and(|output| output.status.success()) {
            println!(
                "SKIPPED: moto's server is not installed (pip install 'moto[server]'; POSTLINK_PYTHON names the Python)"
            );
            return None;
        }
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let child = Command::new(&python)
            .args(["-m", "moto.server", "-H", "127.0.0.1", "-p"])
            .arg(port.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let store = Store { child, port };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < PATIENCE, "moto's server does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        store.put("fleet", b"");
        Some(store)
    }

    /// Writes an object, or makes a bucket.
    fn put(&self, name: &str, bytes: &[u8]) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        // Who signs it is asked, and not whether the signature is right.
        let head = format!(
            "PUT /{name} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\nConnection: close\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential=anyone/20261126/us-east-1/s3/aws4_request, \
             SignedHeaders=host, Signature=0\r\n\r\n",
            bytes.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(
            answer.starts_with(b"HTTP/1.1 200"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }

    fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .env(
                "AWS_ENDPOINT_URL",
                format!("http://127.0.0.1:{}", self.port),
            )
            .env("AWS_ACCESS_KEY_ID", "anyone")
            .env("AWS_SECRET_ACCESS_KEY", "anything")
            .env("AWS_REGION", "us-east-1");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command().args(arguments).output().unwrap()
    }

    fn fleet(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        text(&output)
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?} did not fail");
        let message = text(&output);
        assert!(!message.contains("panicked"), "{message}");
        message
    }

    fn profile(&self, folder: &Folder, place: &str, more: &[&str]) -> Vec<u8> {
        let out = folder.name("of-store.plprof");
        let ask = ["profile", "--build-id", ID, "-o", &out, place];
        self.fleet(&[&ask[..], more].concat());
        folder.bytes("of-store.plprof")
    }
}

/// The four profiles of `four`, added to a place.
fn add(store: &Store, folder: &Folder, to: &str) -> String {
    let profiles: Vec<String> = (1..=4)
        .map(|n| folder.name(&format!("{n}.plprof:{n}")))
        .collect();
    let mut arguments = vec!["add", "-o", to];
    arguments.extend(profiles.iter().map(String::as_str));
    store.fleet(&arguments)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn objects_give_the_bytes_that_files_give() {
    let folder = Folder::new();
    let expected = four(&folder);
    let Some(store) = Store::new() else { return };
    let shards = "s3://fleet/a b/shards";
    let said = add(&store, &folder, shards);
    assert!(said.contains("4 shards added"), "{said}");
    let said = add(&store, &folder, shards);
    assert!(
        said.contains("0 shards added") && said.contains("4 were there already"),
        "{said}"
    );
    assert_eq!(store.profile(&folder, shards, &[]), expected);
    // Merged in place; files and objects have the same names.
    fleet(&["merge", &folder.name("shards"), "-o", &folder.name("here")]);
    let name = name_of(&folder.shards("here")[0]);
    let said = store.fleet(&["merge", shards, "-o", shards, "--replace"]);
    assert!(
        said.contains(&name) && said.contains("4 files removed"),
        "{said}"
    );
    let said = store.fleet(&["check", shards]);
    assert!(said.contains("1 files used, 4 shards"), "{said}");
    assert_eq!(store.profile(&folder, shards, &[]), expected);
    // One object by its name, and what it holds beside it.
    let one = format!("{shards}/{name}");
    assert_eq!(store.profile(&folder, &one, &[]), expected);
    add(&store, &folder, "s3://fleet/others");
    store.fleet(&["merge", "s3://fleet/others", "-o", "s3://fleet/merged"]);
    assert_eq!(store.profile(&folder, "s3://fleet", &[]), expected);
    store.fleet(&["expire", shards, "--before", "2999-01-01"]);
    let message = store.refused(&["query", "SELECT 1", shards]);
    assert!(message.contains("no shard there"), "{message}");
    let other = folder.name("other");
    fleet(&[
        "add",
        &folder.name("1.plprof"),
        "--run",
        "other",
        "-o",
        &other,
    ]);
    let message = store.refused(&["query", "SELECT 1", &other, "s3://fleet/merged"]);
    assert!(message.contains("are in different stores"), "{message}");
}

#[test]
fn a_damaged_object_is_named_and_left_out_only_if_asked() {
    let folder = Folder::new();
    four(&folder);
    let Some(store) = Store::new() else { return };
    for path in folder.shards("shards") {
        store.put(
            &format!("fleet/shards/{}", name_of(&path)),
            &folder.bytes(&format!("shards/{}", name_of(&path))),
        );
    }
    let victim = name_of(&folder.shards("shards")[2]);
    let whole = folder.bytes(&format!("shards/{victim}"));
    let mut flipped = whole.clone();
    flipped[whole.len() / 3] ^= 4;
    for (bytes, expected) in [
        (&whole[..whole.len() / 2], "PAR1"),
        (&flipped, "the hash of its bytes"),
        (b"", "0 bytes"),
    ] {
        store.put(&format!("fleet/shards/{victim}"), bytes);
        let out = folder.name("merged");
        let ask = ["merge", "s3://fleet/shards", "-o", &out];
        let message = store.refused(&ask);
        assert!(
            message.contains(&victim) && message.contains(expected),
            "{message}"
        );
        let said = store.fleet(&[&ask[..], &["--skip-damaged"]].concat());
        assert!(
            said.contains("1 damaged files were left out, 3 are used"),
            "{said}"
        );
    }
    // A bucket that is not there.
    let message = store.refused(&["query", "SELECT 1", "s3://other/x"]);
    assert!(message.contains("s3://other/x: cannot list"), "{message}");
}

/// The ids of so many shards are in its footer that the end of the object that is read first has not all of it.
#[test]
fn a_shard_that_is_in_a_merged_one_with_a_long_footer_is_not_added_again() {
    let folder = Folder::new();
    four(&folder);
    let Some(store) = Store::new() else { return };
    let added = name_of(&folder.shards("shards")[0]);
    let (id, _) = added.split_once('.').unwrap();
    let mut ids: Vec<String> = (0..4000).map(|n: u32| format!("{n:032x}")).collect();
    ids.push(id.to_owned());
    let (rows, labels) = (Rows::default(), Labels::default());
    let mut writer = Writer::new(&folder.path("merged")).unwrap();
    writer
        .write(&rows.batch(&rows.rows, &labels).unwrap())
        .unwrap();
    let path = writer.finish(&"0".repeat(32), &ids, (0, 0)).unwrap();
    let name = format!("fleet/merged/{}", name_of(&path));
    store.put(&name, &std::fs::read(&path).unwrap());
    let said = add(&store, &folder, "s3://fleet/merged");
    assert!(said.contains("3 shards added"), "{said}");
    assert!(said.contains("1 were there already"), "{said}");
}

/// What is larger than one request is uploaded in parts, and its hash is found as it comes.
#[test]
fn a_large_object_goes_up_in_parts_and_is_checked_as_it_comes() {
    let folder = Folder::new();
    let Some(store) = Store::new() else { return };
    let mut rows = Rows::default();
    let (file, event) = (rows.file(ID, "app"), rows.name(""));
    let mut random = 1u64;
    let mut next = || {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        random ^ (random >> 31)
    };
    for _ in 0..350_000u64 {
        rows.rows.push(Row {
            file,
            kind: Some(Kind::Branch),
            address_kind: Some(AddressKind::Linked),
            from_address: Some(next()),
            to_address: Some(next()),
            event,
            count: next() >> 16,
            mispredictions: next() >> 16,
            ..Row::default()
        });
    }
    let labels = Labels {
        weight: 1,
        ..Labels::default()
    };
    let id = rows.finish(&labels, "");
    let mut writer = Writer::new(&folder.path("large")).unwrap();
    writer
        .write(&rows.batch(&rows.rows, &labels).unwrap())
        .unwrap();
    let path = writer
        .finish(&id, std::slice::from_ref(&id), (0, 0))
        .unwrap();
    assert!(std::fs::metadata(&path).unwrap().len() > 8 << 20);
    let large = folder.name("large");
    let said = store.fleet(&["merge", &large, "-o", "s3://fleet/large"]);
    let said_rows = format!("{} rows of {}", rows.rows.len(), rows.rows.len());
    assert!(said.contains(&said_rows), "{said}");
    let check = store.fleet(&["check", "s3://fleet/large"]);
    assert!(check.contains("1 files used, 1 shards"), "{check}");
    // Its bytes under a name with another hash.
    let merged = said
        .split("s3://")
        .nth(1)
        .unwrap()
        .split(": ")
        .next()
        .unwrap();
    let (start, end) = merged.split_once(&id).unwrap();
    assert_eq!(start, "fleet/large/");
    fleet(&["merge", &large, "-o", &folder.name("again")]);
    let again = folder.shards("again");
    assert_eq!(name_of(&again[0]), format!("{id}{end}"));
    let other = format!("{id}.{:016x}.parquet", 5);
    store.put(
        &format!("fleet/other/{other}"),
        &std::fs::read(&again[0]).unwrap(),
    );
    let check = store.refused(&["check", "s3://fleet/other"]);
    assert!(
        check.contains(&other) && check.contains("the hash of its bytes"),
        "{check}"
    );
}

/// Executors have the keys and the endpoint of their own environment.
#[cfg(feature = "cluster")]
#[test]
fn executors_read_objects() {
    use std::io::{BufRead, BufReader};
    let folder = Folder::new();
    let expected = four(&folder);
    let Some(store) = Store::new() else { return };
    add(&store, &folder, "s3://fleet/shards");
    let start = |arguments: &[&str]| {
        let mut child = store
            .command()
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut said)
            .unwrap();
        (Ended(child), said)
    };
    let (_scheduler, said) = start(&["cluster", "scheduler", "--port", "0"]);
    let url = said.trim().strip_prefix("scheduler: ").unwrap().to_owned();
    let temporary = folder.name("executor");
    let executor = [
        "cluster",
        "executor",
        "--threads",
        "1",
        "--memory",
        "128M",
        "--temporary",
        &temporary,
    ];
    let executor = [&executor[..], &["--scheduler", &url]].concat();
    let (_executor, _) = start(&executor);
    let option = ["--cluster", &url];
    let found = store.profile(&folder, "s3://fleet/shards", &option);
    assert_eq!(found, expected);
    let merge = ["merge", "s3://fleet/shards", "-o", "s3://fleet/merged"];
    let said = store.fleet(&[&merge[..], &option].concat());
    fleet(&["merge", &folder.name("shards"), "-o", &folder.name("here")]);
    assert!(said.contains(&name_of(&folder.shards("here")[0])), "{said}");
    assert_eq!(store.profile(&folder, "s3://fleet/merged", &[]), expected);
}

/// A process that ends with its test.
#[cfg(feature = "cluster")]
struct Ended(Child);

#[cfg(feature = "cluster")]
impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
