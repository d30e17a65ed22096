//! Shards: Parquet files of rows, written whole or not at all, and checked before they are believed.
//!
//! A shard's name is `ID.HASH.parquet`. The id (32 hexadecimal digits) is a hash of what its rows say, so that the same
//! profile gives the same id whatever wrote the file; the hash (16 digits) is XXH3 of the file's bytes, so that every
//! damage is found before a count is used. A file that other tools wrote may have any name; it is believed if Parquet's
//! own structure is whole.
//!
//! A file that `merge` wrote carries the ids of all shards that were added up in it. [`Inventory::select`] takes of any
//! set of files each shard exactly once: a file whose shards are all in another file is left out, and two files that
//! have some shards in common, each with others beside them, are an error. So a merge that was stopped after it wrote
//! its result, and before its inputs were deleted, changes no sum.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use datafusion::arrow::array::RecordBatch;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_writer::ArrowWriterOptions;
use datafusion::parquet::basic::{Compression, Encoding, ZstdLevel};
use datafusion::parquet::file::metadata::{KeyValue, ParquetMetaData, ParquetMetaDataReader};
use datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use datafusion::parquet::schema::types::ColumnPath;
use rayon::prelude::*;
use xxhash_rust::xxh3::Xxh3;

use crate::progress::Progress;
use crate::schema::{
    DAYS_KEY, ROWS_KEY, SHARDS_KEY, VERSION, VERSION_KEY, column, day_text, parse_day, schema,
};

/// Rows that are compressed together: few enough to be in memory many times, and to be passed over by statistics.
const ROW_GROUP: usize = 1 << 17;
/// Hexadecimal digits of an id.
pub const ID_DIGITS: usize = 32;

fn properties() -> Result<WriterProperties> {
    // Addresses rise, since rows are sorted by them, or are near the one before. Strings and labels repeat.
    let mut properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(9)?))
        .set_max_row_group_row_count(Some(ROW_GROUP))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_created_by("postlink-fleet".into());
    for name in [column::FROM_ADDRESS, column::TO_ADDRESS] {
        let path = ColumnPath::from(name);
        properties = properties
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
    }
    Ok(properties.build())
}

/// Passes bytes on and hashes them.
struct Hashing<W> {
    out: W,
    hash: Xxh3,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hash.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// A shard that is being written: a temporary in its folder until [`Writer::finish`]. If that is not reached, nothing
/// is left.
pub struct Writer {
    folder: PathBuf,
    temporary: tempfile::NamedTempFile,
    parquet: ArrowWriter<Hashing<BufWriter<File>>>,
    rows: u64,
}

impl Writer {
    /// Begins a file in a folder, which is made if it is not there.
    pub fn new(folder: &Path) -> Result<Writer> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("{}: cannot make the folder", folder.display()))?;
        use std::os::unix::fs::PermissionsExt;
        let temporary = tempfile::Builder::new()
            .prefix(".postlink-fleet-")
            .suffix(".tmp")
            .permissions(std::fs::Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .with_context(|| format!("{}: cannot make a file in it", folder.display()))?;
        let out = Hashing {
            out: BufWriter::with_capacity(1 << 18, temporary.as_file().try_clone()?),
            hash: Xxh3::new(),
        };
        // The schema of Arrow says nothing that Parquet's does not, and would be a fifth of a small file.
        let options = ArrowWriterOptions::new()
            .with_properties(properties()?)
            .with_skip_arrow_metadata(true);
        Ok(Writer {
            folder: folder.to_owned(),
            temporary,
            parquet: ArrowWriter::try_new_with_options(out, schema(), options)?,
            rows: 0,
        })
    }

    /// Adds rows, which must continue in the order of the sort.
    pub fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        self.rows += rows.num_rows() as u64;
        let folder = self.folder.display();
        self.parquet
            .write(rows)
            .with_context(|| format!("{folder}: cannot write a shard"))
    }

    /// Ends the file and gives it its name, after `id` (the one of the only shard, or of all that were merged).
    pub fn finish(mut self, id: &str, shards: &[String], days: (i32, i32)) -> Result<PathBuf> {
        let days = format!("{}/{}", day_text(days.0), day_text(days.1));
        for (key, value) in [
            (VERSION_KEY, VERSION.to_string()),
            (ROWS_KEY, self.rows.to_string()),
            (DAYS_KEY, days),
            (SHARDS_KEY, shards.concat()),
        ] {
            let pair = KeyValue::new(key.to_owned(), value);
            self.parquet.append_key_value_metadata(pair);
        }
        let folder = self.folder.clone();
        let failed = || format!("{}: cannot write a shard", folder.display());
        let mut out = self.parquet.into_inner().with_context(failed)?;
        out.flush().with_context(failed)?;
        let hash = out.hash.digest();
        self.temporary.as_file().sync_all().with_context(failed)?;
        let path = folder.join(format!("{id}.{hash:016x}.parquet"));
        self.temporary
            .persist(&path)
            .with_context(|| format!("{}: cannot give the file its name", path.display()))?;
        Ok(path)
    }
}

/// What a file says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    pub path: PathBuf,
    /// The ids of what was added up in it, sorted. Of files of other tools: made of its path.
    pub ids: Vec<String>,
    pub rows: u64,
    pub bytes: u64,
    /// First and last day, if it says so.
    pub days: Option<(i32, i32)>,
}

/// Reads what a file says of itself and checks it whole.
pub fn open(path: &Path) -> Result<Shard> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut file = File::open(path).with_context(|| format!("{}: cannot open", path.display()))?;
    let size = file.metadata()?.len();
    let footer = footer(path, &mut file, size)?;
    let parts: Vec<&str> = name.split('.').collect();
    if let [id, hash, "parquet"] = parts[..]
        && id.len() == ID_DIGITS
        && hash.len() == 16
    {
        check_hash(path, &mut file, hash)?;
    }
    let say = |key: &str| {
        let pairs = footer.file_metadata().key_value_metadata();
        let pair = pairs.and_then(|pairs| pairs.iter().find(|pair| pair.key == key));
        pair.and_then(|pair| pair.value.clone())
    };
    let wrong = |what: String| anyhow!("{}: in the footer: {what}", path.display());
    let version = say(VERSION_KEY).ok_or_else(|| {
        wrong(format!(
            "no {VERSION_KEY}: this Parquet file has another schema than fleet profiles"
        ))
    })?;
    if version != VERSION.to_string() {
        return Err(wrong(format!(
            "{VERSION_KEY} is {version:?}, this program reads {VERSION}"
        )));
    }
    let counted = footer.file_metadata().num_rows();
    let rows = u64::try_from(counted).map_err(|_| wrong(format!("{counted} rows")))?;
    let sum = footer.row_groups().iter().map(|group| group.num_rows());
    let sum = sum.fold(0i64, i64::saturating_add);
    if sum != counted {
        return Err(wrong(format!(
            "{counted} rows, and {sum} in its row groups"
        )));
    }
    if let Some(said) = say(ROWS_KEY)
        && said != rows.to_string()
    {
        return Err(wrong(format!(
            "{ROWS_KEY} is {said:?}, and there are {rows} rows"
        )));
    }
    check_columns(path, &footer)?;
    let days = match say(DAYS_KEY) {
        None => None,
        Some(text) => {
            let (first, last) = text
                .split_once('/')
                .ok_or_else(|| wrong(format!("{DAYS_KEY} is {text:?}, must be two days and /")))?;
            Some((
                parse_day(first).map_err(|e| wrong(format!("{DAYS_KEY}: {e}")))?,
                parse_day(last).map_err(|e| wrong(format!("{DAYS_KEY}: {e}")))?,
            ))
        }
    };
    let ids = match say(SHARDS_KEY) {
        None => vec![format!("path:{}", path.display())],
        Some(text) => ids(&text).map_err(|what| wrong(format!("{SHARDS_KEY}: {what}")))?,
    };
    Ok(Shard {
        path: path.to_owned(),
        ids,
        rows,
        bytes: size,
        days,
    })
}

fn ids(text: &str) -> Result<Vec<String>, String> {
    let digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    if let Some(at) = text.as_bytes().iter().position(|byte| !digit(byte)) {
        return Err(format!("no hexadecimal digit at {at}"));
    }
    if text.is_empty() || !text.len().is_multiple_of(ID_DIGITS) {
        return Err(format!(
            "{} digits, must be {ID_DIGITS} for each shard",
            text.len()
        ));
    }
    let mut ids: Vec<String> = text
        .as_bytes()
        .chunks(ID_DIGITS)
        .map(|id| String::from_utf8_lossy(id).into_owned())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

fn footer(path: &Path, file: &mut File, size: u64) -> Result<ParquetMetaData> {
    let name = path.display();
    if size < 12 {
        bail!("{name}: cut short: {size} bytes, a Parquet file has at least 12");
    }
    let mut tail = [0; 8];
    file.seek(SeekFrom::End(-8))
        .and_then(|_| file.read_exact(&mut tail))
        .with_context(|| format!("{name}: cannot read"))?;
    let [a, b, c, d, magic @ ..] = tail;
    if magic != *b"PAR1" {
        bail!(
            "{name} at offset {:#x}: the file ends with \"{}\" where \"PAR1\" must be: cut short, or no Parquet file",
            size - 4,
            magic.escape_ascii()
        );
    }
    let length = u64::from(u32::from_le_bytes([a, b, c, d]));
    if length > size - 12 {
        bail!(
            "{name} at offset {:#x}: the length of the footer is {length}, and the file has {size} bytes",
            size - 8
        );
    }
    let at = size - 8 - length;
    let mut reader = ParquetMetaDataReader::new();
    reader
        .try_parse(file)
        .and_then(|()| reader.finish())
        .with_context(|| format!("{name} at offset {at:#x}: damaged footer"))
}

fn check_hash(path: &Path, file: &mut File, expected: &str) -> Result<()> {
    file.seek(SeekFrom::Start(0))?;
    let (mut hash, mut buffer) = (Xxh3::new(), vec![0; 1 << 18]);
    loop {
        let read = file
            .read(&mut buffer)
            .with_context(|| format!("{}: cannot read", path.display()))?;
        if read == 0 {
            break;
        }
        hash.update(buffer.get(..read).unwrap_or_default());
    }
    let found = format!("{:016x}", hash.digest());
    if found != expected {
        bail!(
            "{}: damaged: its name says that the hash of its bytes is {expected}, and it is {found}",
            path.display()
        );
    }
    Ok(())
}

fn check_columns(path: &Path, footer: &ParquetMetaData) -> Result<()> {
    use datafusion::parquet::arrow::parquet_to_arrow_schema;
    let found = parquet_to_arrow_schema(footer.file_metadata().schema_descr(), None)
        .with_context(|| format!("{}: its schema", path.display()))?;
    for field in schema().fields() {
        let same = found.field_with_name(field.name());
        match same {
            Ok(same) if same.data_type() == field.data_type() => {}
            Ok(same) => bail!(
                "{}: the column {} is of type {}, must be {}",
                path.display(),
                field.name(),
                same.data_type(),
                field.data_type()
            ),
            Err(_) => bail!("{}: has no column {}", path.display(), field.name()),
        }
    }
    Ok(())
}

/// The files that a command reads.
#[derive(Debug, Default)]
pub struct Inventory {
    /// Each shard once.
    pub used: Vec<Shard>,
    /// Files whose shards are all in others.
    pub repeated: Vec<PathBuf>,
    /// Damaged files that were left out, and what is wrong with them.
    pub damaged: Vec<(PathBuf, String)>,
}

impl Inventory {
    /// Looks at files, and at all in folders whose names end in `.parquet`.
    pub fn read(places: &[PathBuf], skip_damaged: bool, progress: &Progress) -> Result<Inventory> {
        let mut paths = Vec::new();
        for place in places {
            files(place, &mut paths)?;
        }
        paths.sort_unstable();
        paths.dedup();
        let mut inventory = Inventory::default();
        let mut shards = Vec::new();
        progress.begin("files opened", paths.len() as u64);
        let open = |path| {
            let opened = open(path);
            progress.did();
            opened
        };
        let opened: Vec<_> = paths.par_iter().map(|path| (path, open(path))).collect();
        for (path, opened) in opened {
            match opened {
                Ok(shard) => shards.push(shard),
                Err(error) if skip_damaged => {
                    let what = format!("{error:#}");
                    inventory.damaged.push((path.clone(), what));
                }
                Err(error) => {
                    return Err(error.context(
                        "a shard cannot be used (--skip-damaged goes on without it and says so)",
                    ));
                }
            }
        }
        inventory.select(shards)?;
        Ok(inventory)
    }

    /// The ids of all shards in a folder, by what the files say of themselves.
    pub fn names(folder: &Path) -> Result<Vec<String>> {
        let mut paths = Vec::new();
        files(folder, &mut paths)?;
        let ids = paths.par_iter().map(|path| {
            let mut file =
                File::open(path).with_context(|| format!("{}: cannot open", path.display()))?;
            let size = file.metadata()?.len();
            let footer = footer(path, &mut file, size)?;
            let pairs = footer.file_metadata().key_value_metadata();
            let pair = pairs.and_then(|pairs| pairs.iter().find(|pair| pair.key == SHARDS_KEY));
            let text = pair.and_then(|pair| pair.value.as_deref());
            text.map_or(Ok(vec![]), |text| {
                ids(text).map_err(|what| {
                    anyhow!("{}: in the footer: {SHARDS_KEY}: {what}", path.display())
                })
            })
        });
        let ids: Result<Vec<Vec<String>>> = ids.collect();
        Ok(ids?.concat())
    }

    fn select(&mut self, mut shards: Vec<Shard>) -> Result<()> {
        // What holds most comes first, so that what it holds is known when its parts come.
        shards.sort_by(|a, b| (b.ids.len(), &a.path).cmp(&(a.ids.len(), &b.path)));
        let mut taken: HashMap<String, usize> = HashMap::new();
        for shard in shards {
            let known = shard.ids.iter().filter(|id| taken.contains_key(*id));
            let known: Vec<&String> = known.collect();
            match known.first() {
                None => {
                    let at = self.used.len();
                    taken.extend(shard.ids.iter().map(|id| (id.clone(), at)));
                    self.used.push(shard);
                }
                Some(_) if known.len() == shard.ids.len() => self.repeated.push(shard.path),
                Some(id) => {
                    let other = taken.get(*id).and_then(|at| self.used.get(*at));
                    bail!(
                        "{} and {} have {} shards in common ({id} is one), and each has others: their sum would count these twice",
                        other
                            .map(|other| other.path.clone())
                            .unwrap_or_default()
                            .display(),
                        shard.path.display(),
                        known.len()
                    );
                }
            }
        }
        self.used.sort_by(|a, b| a.path.cmp(&b.path));
        self.repeated.sort_unstable();
        Ok(())
    }

    /// The ids of all shards, sorted.
    pub fn ids(&self) -> Vec<String> {
        let ids = self.used.iter().flat_map(|shard| shard.ids.iter().cloned());
        let mut ids: Vec<String> = ids.collect();
        ids.sort_unstable();
        ids
    }
}

/// The files of a place: itself, or all below it. Names with a point in front are temporaries of someone.
fn files(place: &Path, out: &mut Vec<PathBuf>) -> Result<()> {
    let failed = || format!("{}: cannot read", place.display());
    if !std::fs::metadata(place).with_context(failed)?.is_dir() {
        out.push(place.canonicalize().with_context(failed)?);
        return Ok(());
    }
    for entry in std::fs::read_dir(place).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        if name.starts_with(b".") {
            continue;
        }
        if path.is_dir() || name.ends_with(b".parquet") {
            files(&path, out)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(path: &str, ids: &[&str]) -> Shard {
        Shard {
            path: path.into(),
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            rows: 1,
            bytes: 1,
            days: None,
        }
    }

    #[test]
    fn each_shard_is_taken_once() {
        let mut inventory = Inventory::default();
        inventory
            .select(vec![
                shard("one", &["1"]),
                shard("all", &["1", "2", "3"]),
                shard("four", &["4"]),
                shard("two", &["2"]),
                shard("copy", &["4"]),
            ])
            .unwrap();
        let used: Vec<_> = inventory.used.iter().map(|s| s.path.clone()).collect();
        assert_eq!(used, [Path::new("all"), Path::new("copy")]);
        assert_eq!(inventory.ids(), ["1", "2", "3", "4"]);
        assert_eq!(
            inventory.repeated,
            [Path::new("four"), Path::new("one"), Path::new("two")]
        );
    }

    #[test]
    fn files_that_overlap_in_part_are_refused() {
        let shards = vec![shard("a", &["1", "2"]), shard("b", &["2", "3"])];
        let error = Inventory::default().select(shards).unwrap_err().to_string();
        assert!(
            error.contains("a and b have 1 shards in common (2 is one)"),
            "{error}"
        );
    }

    #[test]
    fn lists_of_ids_are_checked() {
        assert!(ids("").is_err());
        assert!(ids(&"0".repeat(33)).unwrap_err().contains("33 digits"));
        assert!(ids(&"G".repeat(32)).unwrap_err().contains("at 0"));
        assert_eq!(ids(&"0".repeat(64)).unwrap().len(), 1);
    }
}
